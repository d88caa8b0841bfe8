//! The truth for devices: plain loops, sums in f64, one token after the other.
//!
//! Slow on purpose, and without any trick that a device also uses: no chunks, no tiles, no running softmax.

mod attention;
mod gdn;
mod rows;

pub use attention::{Attention, Token};
pub use gdn::{Gdn, Inputs, Part, Running, Summary};
pub use rows::{experts, gated_norm, linear, rms_norm, swiglu};
