//! The contract between processes: protobuf for control, HTTP range pulls for tensor bytes.
//!
//! Never: decides anything, knows a model, a tier or a scheduler.

/// The generated messages and services.
pub mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all, unused_qualifications, clippy::unwrap_used)]
    tonic::include_proto!("hypic.v1");
}
