//! The parts of a layer.

pub(crate) mod full;
pub(crate) mod linear;
pub(crate) mod mlp;
