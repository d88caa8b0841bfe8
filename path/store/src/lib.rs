//! The tiers in which tuples lie, and the codec of their bytes.
#![warn(missing_docs)]

pub mod codec;
pub mod error;
#[cfg(test)]
mod sample;
pub mod tuple;

pub use error::StoreError;
pub use tuple::StoredTuple;
