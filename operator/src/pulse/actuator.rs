//! What the pulse asks of the API server.

use futures::future::BoxFuture;

/// A HypicScatterPool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub object: String,
}

/// The number that a HypicScatterPool asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Workers.
    pub replicas: i32,
    /// Whoever else set it; see [`scaled_by`](super::scaled_by).
    pub scaled_by: Option<String>,
}

/// What came of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The number is set.
    Done,
    /// Somebody else has taken the number since it was read.
    Taken {
        /// Who.
        by: String,
    },
}

/// Something to tell people, of a pool and of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// CamelCase.
    pub reason: &'static str,
    /// What was done: tells events of one reason apart.
    pub action: String,
    /// A sentence.
    pub note: String,
    /// A human should look.
    pub warning: bool,
}

/// Why something could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ActuateError {
    /// The API server refuses, or is away.
    #[error("{action} HypicScatterPool '{object}'")]
    Call {
        /// What was tried.
        action: &'static str,
        /// The pool.
        object: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("the API server does not answer for HypicScatterPool '{object}'")]
    Wait {
        /// The pool.
        object: String,
    },
}

/// What an [`Actuator`] does.
pub type Doing<'a, T> = BoxFuture<'a, Result<T, ActuateError>>;

/// Reads and writes HypicScatterPools.
pub trait Actuator: Send + Sync {
    /// The number as it is now.
    fn read<'a>(&'a self, target: &'a Target) -> Doing<'a, Replicas>;

    /// Sets the number, unless somebody else has set it.
    fn set<'a>(&'a self, target: &'a Target, replicas: i32) -> Doing<'a, Written>;

    /// Publishes an event about the pool and its cluster.
    fn publish<'a>(&'a self, target: &'a Target, news: &'a News) -> Doing<'a, ()>;
}
