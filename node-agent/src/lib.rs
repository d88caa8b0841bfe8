//! One process that owns its pod's devices and serves one model: it composes and decodes, builds cold
//! segments, keeps tuples, owns slots of the index, and sends tuples to its peers.
//!
//! Start reading at `grpc/agent.rs` and `generate.rs`; `engine.rs` computes. Never: knows Kubernetes, a chat
//! template or an API key.

pub mod agent;
pub mod args;
pub mod builds;
mod device;
pub mod device_name;
pub mod engine;
pub mod generate;
pub mod grpc;
pub mod index;
pub mod leases;
pub mod life;
pub mod membership;
pub mod metrics;
pub mod run;
pub mod scrape;
mod start;
