//! Everything numeric: the op contract, its plain-loop oracle and the CPU device.
//!
//! [`op::Device`] is the contract between models and devices: packed rows, KV pages, state slots and summaries.
//! [`plan::Plan`] says what one step computes. A model is written once over both. [`reference`](mod@reference) is the
//! truth that every device is compared with, within the bounds of [`tolerance`]. [`parallel::TensorParallel`] makes one
//! device of several.
//!
//! Never: knows a request, a network, a cluster, a file.

pub mod check;
pub mod coded;
pub mod cpu;
mod error;
pub mod op;
pub mod parallel;
pub mod plan;
pub mod random;
pub mod reference;
mod stored;
pub mod tolerance;
