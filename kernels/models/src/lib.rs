//! Models, written once over the op contract of `hypic-kernels`.
//!
//! [`load`] reads a checkpoint's folder onto a device; [`random::write`] makes checkpoints for tests and benches.
//! Start at [`model::Model`], then `qwen3_next.rs`.
//!
//! Never: knows a request, allocates pages or slots of a server, chooses a device.

pub mod canary;
mod checkpoint;
pub mod config;
mod error;
mod fp8;
mod keys;
mod layer;
mod load;
pub mod model;
mod qwen3_next;
pub mod random;
pub mod rope;
mod stored;
mod tensors;
mod weights;

pub use error::LoadError;
pub use load::{Loaded, load};
