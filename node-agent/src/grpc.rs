//! The gRPC face: convert, call, convert.

pub mod agent;
pub mod fleet;
pub mod index;
