//! Why the router does not start, or stops.

use std::io;
use std::path::PathBuf;

/// Faults of starting and running; what a client is told is [`crate::refusal::Refusal`].
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// A file of the configuration cannot be read.
    #[error("cannot read '{}'", path.display())]
    ReadFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the configuration is not what it should be.
    #[error("'{}' is no valid {what}", path.display())]
    ParseFile {
        /// Which.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A file parses, but says something that cannot be.
    #[error("'{}': {message}", path.display())]
    CheckFile {
        /// Which.
        path: PathBuf,
        /// What cannot be.
        message: String,
    },
    /// Flags that contradict each other.
    #[error("{0}")]
    CheckFlags(&'static str),
    /// Tokenizer, template or configuration of the model.
    #[error("cannot load the tokenizer and template of '{}'", path.display())]
    LoadModel {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Which file, and why.
        source: hypic_segment::SegmentError,
    },
    /// Certificates or listeners.
    #[error("cannot set up the connections")]
    Connect(#[source] hypic_wire::Error),
    /// A metric registered twice.
    #[error("cannot register the metrics")]
    RegisterMetrics(#[source] prometheus::Error),
    /// A task of the router panicked.
    #[error("a part of the router stopped")]
    RunTask(#[source] tokio::task::JoinError),
    /// The topology file.
    #[error("cannot start from the topology file")]
    LoadTopology(#[source] hypic_wire::Error),
}
