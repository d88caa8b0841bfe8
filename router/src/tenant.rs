//! API keys → tenants, and what a tenant's policy allows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hypic_domain::flow::Mode;
use hypic_domain::id::TenantId;
use hypic_domain::key::Scope;
use hypic_wire::follow::Live;
use serde::{Deserialize, Serialize};

use crate::error::RouterError;
use crate::metrics::Metrics;
use crate::refusal::Refusal;

/// What one key allows: a value of the tenants file, whose keys are BLAKE3 digests of API keys in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Who holds the key.
    pub tenant: TenantId,
    /// Every request runs in this mode; another one asked for is refused.
    #[serde(default)]
    pub pinned: Option<Mode>,
    /// Modes that a request may ask for. `add` and `last` are for benches and must be named here.
    #[serde(default = "default_modes")]
    pub modes: Vec<Mode>,
    /// Share tuples with everybody else whose policy says so, instead of keeping them to the tenant.
    #[serde(default)]
    pub public: bool,
    /// Requests of the tenant that run at once; no limit of its own without it.
    #[serde(default)]
    pub concurrent: Option<usize>,
}

fn default_modes() -> Vec<Mode> {
    vec![Mode::Recompute, Mode::Prefix, Mode::Pic]
}

impl Policy {
    /// The policy of an open door: one tenant, no limits.
    pub fn open() -> Self {
        Self {
            tenant: TenantId::from("anonymous"),
            pinned: None,
            modes: Mode::ALL.to_vec(),
            public: false,
            concurrent: None,
        }
    }

    /// The mode of a request that asks for `asked`; `auto` and nothing are the model's own `default`.
    ///
    /// # Errors
    /// An unknown mode, or one that the policy does not allow.
    pub fn mode(&self, asked: Option<&str>, default: Mode) -> Result<Mode, Refusal> {
        let asked = match asked {
            None | Some("auto") => None,
            Some(name) => Some(Mode::parse(name).ok_or_else(|| {
                let known: Vec<&str> = Mode::ALL.into_iter().map(Mode::name).collect();
                Refusal::bad(
                    "hypic.mode",
                    format!("'hypic.mode' must be auto or one of {}", known.join(", ")),
                )
            })?),
        };
        let refuse = |mode: Mode| Refusal::Forbid {
            message: format!("this key may not use the mode '{}': {}", mode.name(), self.allowed()),
            param: Some("hypic.mode".to_owned()),
        };
        match (self.pinned, asked) {
            (Some(pinned), None) => Ok(pinned),
            (Some(pinned), Some(asked)) if pinned == asked => Ok(pinned),
            (Some(_), Some(asked)) => Err(refuse(asked)),
            (None, None) => Ok(default),
            (None, Some(asked)) if self.modes.contains(&asked) => Ok(asked),
            (None, Some(asked)) => Err(refuse(asked)),
        }
    }

    /// The modes of its requests, for whoever asks for another.
    fn allowed(&self) -> String {
        let names = |modes: &[Mode]| modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(", ");
        match self.pinned {
            Some(pinned) => format!("all its requests run in '{}'", pinned.name()),
            None => format!("it may use {}", names(&self.modes)),
        }
    }

    /// Whose tuples its requests may use.
    pub fn scope(&self, secret: &[u8; 32]) -> Scope {
        if self.public { Scope::PUBLIC } else { Scope::of_tenant(secret, self.tenant.as_str()) }
    }
}

/// Every key that opens the door.
pub enum Tenants {
    /// No key is asked for: only by explicit flag.
    Open(Box<Policy>),
    /// Digests of keys and their policies.
    Keys(Vec<(blake3::Hash, Policy)>),
}

impl Tenants {
    /// Reads the tenants file.
    ///
    /// # Errors
    /// A file that cannot be read, is no JSON of that form, or holds a digest that is none.
    pub fn load(path: &Path) -> Result<Self, RouterError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RouterError::ReadFile { path: path.to_owned(), source })?;
        let file: BTreeMap<String, Policy> = serde_json::from_str(&text).map_err(|source| {
            RouterError::ParseFile { path: path.to_owned(), what: "tenants file", source }
        })?;
        let keys = file.into_iter().map(|(digest, policy)| {
            let digest = blake3::Hash::from_hex(&digest).map_err(|_| RouterError::CheckFile {
                path: path.to_owned(),
                message: format!("tenant '{}' has a key digest that is not 64 hex digits", policy.tenant),
            })?;
            Ok((digest, policy))
        });
        Ok(Self::Keys(keys.collect::<Result<_, _>>()?))
    }

    /// The policy behind the `Authorization` header.
    ///
    /// # Errors
    /// A missing, malformed or unknown key.
    pub fn check(&self, authorization: Option<&str>) -> Result<&Policy, Refusal> {
        let keys = match self {
            Self::Open(policy) => return Ok(policy),
            Self::Keys(keys) => keys,
        };
        let key = authorization.and_then(|header| {
            let (scheme, key) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let digest = blake3::hash(key.ok_or(Refusal::CheckKey)?.as_bytes());
        // Every entry is compared, each in constant time: the answer's delay tells nothing of the keys.
        let mut found = None;
        for (known, policy) in keys {
            if *known == digest {
                found = Some(policy);
            }
        }
        found.ok_or(Refusal::CheckKey)
    }
}

/// Looks at the tenants file every so often, for ever. A broken one changes nothing, and a metric says so.
pub async fn follow(tenants: &Live<Tenants, RouterError>, metrics: &Metrics, every: Duration) {
    let tell = |read: Result<(), RouterError>| {
        metrics.tenants_stale.set(i64::from(read.is_err()));
        match read {
            Ok(()) => tracing::info!("new tenants are in use"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, cause, "the tenants stay as they are");
            }
        }
    };
    tenants.follow(every, tell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(json: &str) -> Result<Tenants, RouterError> {
        let file = tempfile::NamedTempFile::new().expect("temp file");
        std::fs::write(file.path(), json).expect("write");
        Tenants::load(file.path())
    }

    #[test]
    fn a_known_key_finds_its_tenant_and_nothing_else_does() {
        let digest = blake3::hash(b"sk-one").to_hex();
        let tenants = tenants(&format!("{{\"{digest}\": {{\"tenant\": \"one\"}}}}")).expect("file");
        let tenant = |header| tenants.check(header).map(|policy| policy.tenant.0.clone());
        assert_eq!(tenant(Some("Bearer sk-one")), Ok("one".to_owned()));
        assert_eq!(tenant(Some("bearer sk-one")), Ok("one".to_owned()));
        for header in [None, Some("sk-one"), Some("Bearer sk-on"), Some("Bearer "), Some("Basic sk-one")] {
            assert_eq!(tenant(header), Err(Refusal::CheckKey));
        }
    }

    #[tokio::test]
    async fn a_changed_file_is_used_and_a_broken_one_keeps_the_old_keys() {
        const OFTEN: Duration = Duration::from_millis(5);
        let file = tempfile::NamedTempFile::new().expect("temp file");
        let write = |key: &str| {
            let digest = blake3::hash(key.as_bytes()).to_hex();
            std::fs::write(file.path(), format!("{{\"{digest}\": {{\"tenant\": \"one\"}}}}")).expect("write");
        };
        write("sk-one");
        let path = file.path().to_owned();
        let live = Live::read(vec![path.clone()], move || Tenants::load(&path)).expect("a tenants file");
        let metrics = Metrics::new(prometheus::Registry::new()).expect("fresh");
        let knows = |key: &str| live.now().check(Some(&format!("Bearer {key}"))).is_ok();
        let changes = async {
            std::fs::write(file.path(), "{ no JSON").expect("write");
            while metrics.tenants_stale.get() == 0 {
                tokio::time::sleep(OFTEN).await;
            }
            assert!(knows("sk-one"));
            write("sk-two");
            while !knows("sk-two") {
                tokio::time::sleep(OFTEN).await;
            }
            assert!(!knows("sk-one"));
            assert_eq!(metrics.tenants_stale.get(), 0);
        };
        tokio::select! {
            () = changes => {}
            () = follow(&live, &metrics, OFTEN) => {}
        }
    }

    #[test]
    fn a_policy_pins_allows_and_refuses_modes() {
        let mut policy = Policy { modes: default_modes(), ..Policy::open() };
        assert_eq!(policy.mode(None, Mode::Prefix), Ok(Mode::Prefix));
        assert_eq!(policy.mode(Some("auto"), Mode::Pic), Ok(Mode::Pic));
        assert_eq!(policy.mode(Some("recompute"), Mode::Pic), Ok(Mode::Recompute));
        assert!(matches!(policy.mode(Some("add"), Mode::Pic), Err(Refusal::Forbid { .. })));
        assert!(matches!(policy.mode(Some("fast"), Mode::Pic), Err(Refusal::BadRequest { .. })));
        policy.pinned = Some(Mode::Add);
        assert_eq!(policy.mode(None, Mode::Pic), Ok(Mode::Add));
        assert_eq!(policy.mode(Some("add"), Mode::Pic), Ok(Mode::Add));
        assert!(matches!(policy.mode(Some("pic"), Mode::Pic), Err(Refusal::Forbid { .. })));
    }

    #[test]
    fn tenants_have_scopes_of_their_own_unless_they_share_by_policy() {
        let secret = [7; 32];
        let one = Policy { tenant: TenantId::from("one"), ..Policy::open() };
        let two = Policy { tenant: TenantId::from("two"), ..Policy::open() };
        assert_ne!(one.scope(&secret), two.scope(&secret));
        assert_eq!(Policy { public: true, ..one }.scope(&secret), Scope::PUBLIC);
    }

    #[test]
    fn a_file_with_a_digest_that_is_none_is_refused() {
        assert!(matches!(tenants("{\"abc\": {\"tenant\": \"one\"}}"), Err(RouterError::CheckFile { .. })));
        assert!(matches!(tenants("[]"), Err(RouterError::ParseFile { .. })));
    }
}
