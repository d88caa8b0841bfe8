//! Station 5: gathered segments into rows and a per-layer program.
//!
//! A prompt becomes a [`Program`]: its live rows (seams, live pieces, the query) with the summaries of cached
//! bodies between them. The engine takes [`Slice`]s of it, so many rows a step. A build is the same program for
//! one segment onto a zero state, with a range of rows recorded. [`gap`] measures how far an answer is from the
//! one of a full prefill.
//!
//! Never: knows a device's memory, a clock, a tuple's bytes or another station. Everything here is pure.
//!
//! Invariants: any slicing covers every row once and in order; a body's summary is applied exactly once, after
//! its seam's rows and before the next row; whether a tuple was hit or built changes no slice.

pub mod build;
pub mod gap;
pub mod program;

pub use build::Build;
pub use program::{Ablation, Body, Program, Slice, Step};

/// Why a prompt has no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    /// Nothing to answer.
    #[error("the prompt has no tokens")]
    ReadPrompt,
    /// A segment without a body has no tuple.
    #[error("a segment of {tokens} tokens has no body behind a seam of {seam}")]
    BuildSegment {
        /// Tokens of the segment.
        tokens: usize,
        /// Width of the seam.
        seam: u32,
    },
}
