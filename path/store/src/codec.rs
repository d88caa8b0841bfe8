//! The bytes of a tuple: a manifest and parts, the same on the wire and in every tier.
//!
//! Parts lie one behind the other in layer-major order, `[layer][kind]`, heads outermost inside a part, so that
//! a tensor-parallel rank reads its own range. Which parts there are and how long they are follows from the
//! [`TupleHead`]; only a transition's length depends on what was computed, since heads that forget store no `T`.
//! A transition part therefore begins with the set of its live heads (`hypic_domain::part`), padded to 16 bytes: a
//! receiver can use a layer before the manifest exists. The manifest comes last, holds a sum for every part and
//! one for itself, and without it there is no tuple.

mod fields;
mod manifest;
mod part;
mod shape;
mod writer;

pub use manifest::{Manifest, OLDEST_VERSION, TupleHead, VERSION};
pub use part::Part;
pub use writer::TupleWriter;

#[cfg(test)]
mod tests;
