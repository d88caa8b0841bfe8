//! Conditions: types, statuses and how a list of them changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition types, `Ready` first: it sums up the others.
pub mod kind {
    /// The summary: requests are answered as the spec asks for.
    pub const READY: &str = "Ready";
    /// A router and a combine agent answer.
    pub const AVAILABLE: &str = "Available";
    /// The fleet moves towards the spec.
    pub const PROGRESSING: &str = "Progressing";
    /// Every agent that should serve has loaded its model.
    pub const MODELS_LOADED: &str = "ModelsLoaded";
    /// The tiers that the spec asks for are there.
    pub const TIERS_READY: &str = "TiersReady";
    /// No owner of the index waits for a holder's dump.
    pub const INDEX_CONSISTENT: &str = "IndexConsistent";
    /// The autoscaler sets the number of scatter workers.
    pub const SCATTER_SCALING: &str = "ScatterScaling";
    /// Composed answers have drifted from recomputed ones.
    pub const COMPOSITION_DRIFT: &str = "CompositionDrift";
    /// Something needs a human.
    pub const DEGRADED: &str = "Degraded";

    /// Every type of a HypicCluster.
    pub const ALL: [&str; 9] = [
        READY,
        AVAILABLE,
        PROGRESSING,
        MODELS_LOADED,
        TIERS_READY,
        INDEX_CONSISTENT,
        SCATTER_SCALING,
        COMPOSITION_DRIFT,
        DEGRADED,
    ];
}

/// What is known of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell yet.
    Unknown,
}

impl Is {
    /// As it stands in a condition's `status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Is {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition before it has times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// One of [`kind::ALL`].
    pub kind: &'static str,
    /// Whether it holds.
    pub is: Is,
    /// CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people, at most 1 KiB of it kept.
    pub message: String,
}

impl Finding {
    /// A finding.
    pub fn new(
        kind: &'static str,
        is: impl Into<Is>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let mut message: String = message.into();
        if message.len() > 1024 {
            message.truncate(message.floor_char_boundary(1021));
            message.push('…');
        }
        Self { kind, is: is.into(), reason, message }
    }
}

/// Findings as conditions: times are those of `before` where the status is the same, else `now`.
pub fn conditions(findings: &[Finding], before: &[Condition], generation: i64, now: &Time) -> Vec<Condition> {
    findings
        .iter()
        .map(|finding| {
            let old = before.iter().find(|old| old.type_ == finding.kind && old.status == finding.is.name());
            Condition {
                type_: finding.kind.to_owned(),
                status: finding.is.name().to_owned(),
                reason: finding.reason.to_owned(),
                message: finding.message.clone(),
                observed_generation: Some(generation),
                last_transition_time: old.map_or(now, |old| &old.last_transition_time).clone(),
            }
        })
        .collect()
}
