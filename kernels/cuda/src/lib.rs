//! Our own CUDA kernels and the safe layer over them.
//!
//! The only crate of the workspace with unsafe code, in three modules: `sys` (entry points), `launch.rs` (one launch,
//! after all checks) and `memory` (buffers, pinned memory, transfers). Everything above takes typed views, whose sizes
//! are checked once, in `view.rs`.
//!
//! Every kernel has a portable form whose source also compiles for the host, each CUDA thread a fiber
//! (`device/fiber.hpp`), so that [`Device::fibers`] runs what [`Device::cuda`] runs, slowly, on a machine
//! without a GPU. The Hopper forms are checked against the portable ones on the device. Which form runs is a
//! pure function of shape, format and compute capability (`choice.rs`).
//!
//! [`CudaDevice`] is the op contract of `hypic-kernels` over all this: what models and the engine see.
//!
//! This crate never sees a request, a model's weights by name or a cache. It starts without a driver:
//! [`Device::cuda`] then says [`Error::NoDevice`].
//!
//! Start reading at `contract.rs` (the device), `recurrence.rs` (prefill, build, decode) and `compose_seam.rs`
//! (a prompt of cached segments); the mathematics is in README.md.

#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(any(feature = "cuda", feature = "fibers")))]
compile_error!("hypic-cuda runs on a GPU (feature `cuda`), as fibers (feature `fibers`), or both");

mod arena;
mod attention;
pub mod bounds;
mod checksum;
mod choice;
mod codes;
mod compose_seam;
mod contexts;
mod contract;
mod conv_warm;
#[cfg(feature = "cuda")]
mod copies;
mod device;
mod draw;
mod error;
mod experts;
mod experts_few;
mod experts_hopper;
mod gdn_chunks;
mod graph;
#[allow(unsafe_code)]
mod launch;
pub mod layout;
#[allow(unsafe_code)]
mod memory;
mod mla;
mod norm;
mod pack;
mod product;
mod product_few;
mod programs;
mod random;
mod recurrence;
#[cfg(feature = "cuda")]
mod reuse;
mod rotate;
mod rows;
mod scores_few;
mod step;
mod sums;
#[allow(unsafe_code)]
mod sys;
mod view;

pub use attention::{Attention, Heads, attention, attention_as, gather_kv, norm_and_store, store_kv};
pub use checksum::checksum;
pub use choice::{
    AttentionForm, ComposeForm, ExpertsForm, FEW_ROWS_OF_EXPERTS, attention_form, compose_form, experts_form,
};
pub use codes::{CodedMatrix, Matrix};
pub use compose_seam::{ComposeSeam, Scratch, compose_seam};
pub use contexts::{Context, Contexts, Token};
pub use contract::CudaDevice;
pub use conv_warm::{ConvWarm, RawRow, Span, TAPS, conv_warm};
pub use device::{Device, Order};
pub use draw::{Change, Draw, DrawnLogits, change_logits, draw_logits};
pub use error::Error;
pub use experts::{Routes, Sent, route};
pub use experts_few::{ExpertWeights, ExpertsFew, experts_few};
pub use gdn_chunks::{ChunkScratch, GdnChunks, gdn_chunks, gdn_chunks_one, has_gdn_chunks, join_pieces};
pub use graph::Graph;
pub use hypic_domain::model::FullShape;
pub use memory::{Buffer, Element, Float, Fresh, Pinned};
pub use mla::{Mla, mla, store_latent};
pub use norm::{RmsNorm, add_norm, gated_norm, gates, rms_norm, unit_norm};
pub use pack::{Codes, Place, Places, pack_rows, pack_tiles, unpack_rows, unpack_tiles};
pub use product::{ProductSize, product, product_plain};
pub use product_few::{FewPart, MOST_WEIGHTS, norm_product_few, product_few};
pub use random::random_values;
pub use recurrence::{Recurrence, Summaries, recurrence, recurrence_chunks};
pub use rotate::state_rotate;
pub use rows::{
    Experts, TopLogits, TopOfRow, add_rows, choose_experts, gather_rows, sigmoid_gate, swiglu, top_logits,
};
pub use scores_few::{Choice, Routed, Router, SumAndNorm, add_norm_scores_few};
pub use sums::sum_ranks;
pub use view::{Family, Program, Rows, Sequence, Sequences, Shape, Step, StoredAs, Summary};

/// The result of every call here.
pub type Result<T> = std::result::Result<T, Error>;
