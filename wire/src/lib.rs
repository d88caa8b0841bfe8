//! The contract between processes: protobuf for control, HTTP range pulls for tensor bytes.
//!
//! Never: decides anything, knows a model, a tier or a scheduler, lets a tensor byte into gRPC.
//!
//! Invariants: every field that arrives is taken apart by name and checked ([`convert`]); limits on message
//! sizes stand on both sides ([`channel`], [`serve`]); a part is announced only after its checksum was
//! checked ([`bulk`]); connections are mutually authenticated unless [`tls::Security::Plain`] was asked for.
//!
//! Start at [`bulk`] for tensor bytes and at [`convert::order`] for control.

pub mod address;
pub mod bulk;
pub mod channel;
pub mod convert;
mod error;
pub mod follow;
pub mod probes;
pub mod process;
pub mod serve;
pub mod status;
pub mod steer;
pub mod tls;
pub mod topology_file;
pub mod trace;

pub use error::Error;

/// The generated messages and services.
pub mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all, unused_qualifications, clippy::unwrap_used)]
    tonic::include_proto!("hypic.v1");
}
