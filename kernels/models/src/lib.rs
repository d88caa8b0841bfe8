//! Models, written once over the op contract of `hypic-kernels`.
//!
//! Never: knows a request, allocates pages or slots, chooses a device.

pub mod model;
