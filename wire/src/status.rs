//! One table between what a peer refuses and gRPC's status codes.

use std::fmt::Write as _;
use std::time::Duration;

use hypic_domain::id::Epoch;
use hypic_domain::unit::Tokens;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::Error;

/// Metadata key: the refusing peer's epoch.
pub const EPOCH_KEY: &str = "hypic-epoch";
/// Metadata key: which refusal, since several share a code.
const REFUSAL_KEY: &str = "hypic-refusal";
/// Metadata key: when to ask again.
const RETRY_KEY: &str = "hypic-retry-ms";
/// Metadata keys: what would have to be held, and what can be.
const TOKENS_KEY: &str = "hypic-tokens";
const LIMIT_KEY: &str = "hypic-limit";
/// Longest message in a status: it travels as a header, where every odd byte takes three.
const MESSAGE_BYTES: usize = 1024;

/// Why a peer did not do what was asked: what the asker acts on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The asked agent does not own a slot of the question; it is at `epoch`.
    #[error("not the owner at epoch {epoch}")]
    WrongOwner {
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// The asker's topology is older than the peer's.
    #[error("topology is older than epoch {epoch}")]
    OldEpoch {
        /// The peer's epoch.
        epoch: Epoch,
    },
    /// The identities differ: tuples of the two cannot mix.
    #[error("identity differs")]
    Identity,
    /// A bound is reached; ask again after `retry`.
    #[error("busy")]
    Busy {
        /// When to ask again.
        retry: Duration,
    },
    /// The peer is starting or draining.
    #[error("not serving: {why}")]
    NotServing {
        /// In which state it is.
        why: String,
    },
    /// The prompt and its answer are longer than what the peer can hold at once.
    #[error("{} tokens do not fit into {}", tokens.0, limit.0)]
    TooLong {
        /// What would have to be held.
        tokens: Tokens,
        /// What can be.
        limit: Tokens,
    },
    /// The asker's certificate does not give it the right.
    #[error("forbidden: {why}")]
    Forbidden {
        /// Who may.
        why: String,
    },
    /// The message does not read.
    #[error("malformed: {why}")]
    Malformed {
        /// Which field, and how.
        why: String,
    },
    /// The deadline passed.
    #[error("deadline passed")]
    Deadline,
    /// The asker went away.
    #[error("cancelled")]
    Cancelled,
    /// The peer cannot be reached.
    #[error("unreachable: {why}")]
    Unreachable {
        /// What the connection said.
        why: String,
    },
    /// A fault of the peer.
    #[error("peer failed: {why}")]
    Failed {
        /// What it said.
        why: String,
    },
}

impl Refusal {
    /// Whether another peer may do what this one refused.
    pub fn elsewhere(&self) -> bool {
        !matches!(
            self,
            Self::Forbidden { .. }
                | Self::Malformed { .. }
                | Self::TooLong { .. }
                | Self::Deadline
                | Self::Cancelled
        )
    }

    fn row(&self) -> (Code, &'static str) {
        match self {
            Self::WrongOwner { .. } => (Code::FailedPrecondition, "wrong-owner"),
            Self::OldEpoch { .. } => (Code::FailedPrecondition, "old-epoch"),
            Self::Identity => (Code::FailedPrecondition, "identity"),
            Self::Busy { .. } => (Code::ResourceExhausted, "busy"),
            Self::NotServing { .. } => (Code::Unavailable, "not-serving"),
            Self::TooLong { .. } => (Code::OutOfRange, "too-long"),
            Self::Forbidden { .. } => (Code::PermissionDenied, "forbidden"),
            Self::Malformed { .. } => (Code::InvalidArgument, "malformed"),
            Self::Deadline => (Code::DeadlineExceeded, "deadline"),
            Self::Cancelled => (Code::Cancelled, "cancelled"),
            Self::Unreachable { .. } => (Code::Unavailable, "unreachable"),
            Self::Failed { .. } => (Code::Internal, "failed"),
        }
    }

    /// What stands in the status beside the name: the reason alone, so that it does not grow with each hop.
    fn text(&self) -> String {
        match self {
            Self::NotServing { why }
            | Self::Forbidden { why }
            | Self::Malformed { why }
            | Self::Unreachable { why }
            | Self::Failed { why } => cut(why),
            other => other.to_string(),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (code, name) = refusal.row();
        let mut metadata = MetadataMap::new();
        metadata.insert(REFUSAL_KEY, MetadataValue::from_static(name));
        match refusal {
            Refusal::WrongOwner { epoch } | Refusal::OldEpoch { epoch } => {
                metadata.insert(EPOCH_KEY, epoch.0.into());
            }
            Refusal::TooLong { tokens, limit } => {
                metadata.insert(TOKENS_KEY, tokens.0.into());
                metadata.insert(LIMIT_KEY, limit.0.into());
            }
            Refusal::Busy { retry } => {
                let millis = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
                metadata.insert(RETRY_KEY, millis.into());
            }
            _ => {}
        }
        Self::with_metadata(code, refusal.text(), metadata)
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let metadata = status.metadata();
        let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok());
        let number = |key: &str| text(key).and_then(|value| value.parse::<u64>().ok());
        let why = cut(status.message());
        match (text(REFUSAL_KEY), status.code()) {
            (Some("wrong-owner"), _) => Self::WrongOwner { epoch: Epoch(number(EPOCH_KEY).unwrap_or(0)) },
            (Some("old-epoch"), _) => Self::OldEpoch { epoch: Epoch(number(EPOCH_KEY).unwrap_or(0)) },
            (Some("identity"), _) => Self::Identity,
            (Some("busy"), _) => {
                Self::Busy { retry: Duration::from_millis(number(RETRY_KEY).unwrap_or(1000)) }
            }
            (Some("too-long"), _) => {
                let tokens = |key| Tokens(number(key).and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
                Self::TooLong { tokens: tokens(TOKENS_KEY), limit: tokens(LIMIT_KEY) }
            }
            (Some("not-serving"), _) => Self::NotServing { why },
            (Some("unreachable"), _) | (None, Code::Unavailable) => Self::Unreachable { why },
            (_, Code::PermissionDenied) => Self::Forbidden { why },
            (_, Code::InvalidArgument) => Self::Malformed { why },
            (_, Code::DeadlineExceeded) => Self::Deadline,
            (_, Code::Cancelled) => Self::Cancelled,
            _ => Self::Failed { why },
        }
    }
}

impl From<Error> for Refusal {
    /// A message that does not read is the sender's fault.
    fn from(error: Error) -> Self {
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            // Writing to a String cannot fail.
            let _ = write!(why, ": {source}");
            cause = source.source();
        }
        Self::Malformed { why: cut(&why) }
    }
}

/// The text, at most [`MESSAGE_BYTES`] long, ended at a whole character.
fn cut(text: &str) -> String {
    if text.len() <= MESSAGE_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MESSAGE_BYTES - 3)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_survives_the_wire() {
        let why = || "because".to_owned();
        for refusal in [
            Refusal::WrongOwner { epoch: Epoch(7) },
            Refusal::OldEpoch { epoch: Epoch(u64::MAX) },
            Refusal::Identity,
            Refusal::Busy { retry: Duration::from_millis(1500) },
            Refusal::NotServing { why: why() },
            Refusal::TooLong { tokens: Tokens(9000), limit: Tokens(8192) },
            Refusal::Forbidden { why: why() },
            Refusal::Malformed { why: why() },
            Refusal::Deadline,
            Refusal::Cancelled,
            Refusal::Unreachable { why: why() },
            Refusal::Failed { why: why() },
        ] {
            assert_eq!(Refusal::from(Status::from(refusal.clone())), refusal);
        }
    }

    #[test]
    fn wrong_owner_carries_the_epoch_where_the_contract_says() {
        let status = Status::from(Refusal::WrongOwner { epoch: Epoch(12) });
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.metadata().get(EPOCH_KEY).unwrap(), "12");
    }

    #[test]
    fn an_over_long_message_is_cut_at_a_character() {
        let status = Status::from(Refusal::Failed { why: "é".repeat(100 << 10) });
        assert!(status.message().len() <= MESSAGE_BYTES);
        assert!(status.message().ends_with('…'));
    }
}
