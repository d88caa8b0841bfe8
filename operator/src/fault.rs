//! What stands between a cluster and what its spec asks for, in words for people.

/// One fault of a spec, or of what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// CamelCase word for programs.
    pub reason: &'static str,
    /// Names the field and says what to do.
    pub message: String,
    /// Nothing can be planned until it is mended. What runs is left as it is.
    pub blocks: bool,
}

/// A refusal of the API server as a fault that names the child. That it cannot answer just now is none.
///
/// # Errors
/// Everything else, as it was.
pub fn of_refusal(kind: &str, name: &str, error: kube::Error) -> Result<Fault, kube::Error> {
    match error {
        kube::Error::Api(refusal) if is_refusal(refusal.code) => Ok(refused(kind, name, &refusal.message)),
        // The words of the error could be those of a Secret.
        kube::Error::SerdeError(_) => {
            let message =
                format!("{kind} {name} does not read as one: mend it, or delete it to have it made anew");
            Ok(Fault { reason: "Unreadable", message, blocks: false })
        }
        error => Err(error),
    }
}

/// Trying the same again will not help.
pub fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && ![408, 429].contains(&code)
}

/// A name that a child needs is somebody else's.
pub fn taken(kind: &str, name: &str) -> Fault {
    let message =
        format!("{kind} {name} belongs to somebody else: rename the cluster or the pool, or remove it");
    Fault { reason: "NameTaken", message, blocks: false }
}

/// Whether the API server speaks of a quota.
pub fn is_over_quota(told: &str) -> bool {
    told.contains("exceeded quota")
}

/// An error with its sources on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The API server's own words on a child.
fn refused(kind: &str, name: &str, message: &str) -> Fault {
    let reason = if is_over_quota(message) {
        "QuotaExceeded"
    } else if message.contains("immutable") || message.contains("Forbidden: updates to statefulset") {
        "ImmutableField"
    } else {
        "ApplyRefused"
    };
    Fault { reason, message: format!("{kind} {name}: {message}"), blocks: false }
}
