//! The tiers in which tuples lie, and the codec of their bytes.
//!
//! One [`Store`] per agent: Device and Host are arenas in memory, Disk is a folder on a local drive; each has a
//! hard byte cap. A tuple comes out whole and checked, or it is a miss with a reason, and the caller recomputes.
//! Prefix snapshots lie beside them in a [`SnapshotCache`] with a budget of its own.
//!
//! This crate knows no network, no model and no async runtime; it never decides to compute.
//! Start at [`codec`], then [`tier`], then [`ladder`].
#![warn(missing_docs)]

pub mod arena;
pub mod codec;
#[cfg(test)]
mod conformance;
pub mod disk;
pub mod error;
pub mod evict;
mod faults;
mod history;
pub mod ladder;
#[cfg(test)]
mod sample;
mod shelf;
pub mod snapshot;
pub mod tier;
pub mod tuple;

pub use error::StoreError;
pub use faults::FaultCounts;
pub use ladder::{Hit, Observer, Place, Store, StoreConfig, StoreEvent};
pub use snapshot::SnapshotCache;
pub use tuple::StoredTuple;
