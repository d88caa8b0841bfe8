//! The algebra of summaries in f64, over plain slices: the truth that every kernel is checked against.
//!
//! Per value head a linear-attention layer keeps a state `S`, `[key, value]`, and each token does
//! `S <- A_t S + u_t`. A span of tokens is therefore an affine map, its *summary* `(T, S)`, and spans
//! compose: `(T2, S2) ∘ (T1, S1) = (T2 T1, T2 S1 + S2)`. What differs between families is `A_t`, `u_t` and
//! the form of `T`; each family is one file and one [`Token`] type.
//!
//! Invariants, all tested in `tests/laws.rs`: any split of any sequence composes to its scan; composition is
//! associative and has an identity; the gate-only bound is never under the true norm of `T`.
//!
//! Nothing here is fast, nothing here knows a model, a batch or a device.
//! Start at [`token`], then [`summary`]; the derivations stand in `README.md`.
#![warn(missing_docs)]

pub mod conv_tail;
pub mod deltanet;
pub mod gdn;
pub mod gla;
pub mod kda;
pub mod linear;
pub mod mamba2;
pub mod retention;
pub mod rotation;
pub mod summary;
pub mod token;
pub mod transition;

mod matrix;

pub use summary::Summary;
pub use token::{Token, scan, summarise};
pub use transition::Transition;
