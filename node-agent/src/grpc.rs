//! The gRPC face: convert, call, convert.

pub mod agent;
mod describe;
pub mod fleet;
pub mod index;
