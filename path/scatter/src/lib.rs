//! Station 4: fan out, and gather what comes back as it comes.
//!
//! Runs on the combine agent. From an order's sources it leases and pulls tuples from holders, has cold
//! segments built by scatter workers and follows them layer by layer, and tells the caller which segments it
//! must build itself. It decides nothing that the order decided, keeps nothing, and knows no codec: a
//! manifest is bytes.
//!
//! Invariants: a segment ends exactly once, whole or lost; a lost one is built by the caller, so a request
//! never fails here; no byte is handed on whose checksum was not checked; bytes in flight stay under one
//! budget and return to zero when the caller lets go; peers, index and transport are arguments, and time is
//! tokio's, so everything runs in one process under virtual time.
//!
//! Start at [`Scatter::gather`]; `segment` holds the life of one segment.

mod build;
mod fetch;
mod gather;
mod grpc;
mod layer;
mod peers;
mod segment;
mod station;

pub use gather::{GatherEvents, Gathered, Handle};
pub use grpc::GrpcPeers;
pub use layer::Layer;
pub use peers::{Builds, Index, Peers};
pub use segment::GatherEvent;
pub use station::{Limits, Scatter};

#[cfg(test)]
mod tests;
