//! Station 6: from logits to tokens, and whose turn it is.
//!
//! [`sample`] draws a token from a row of logits, [`stop`] says when an answer ends, [`fair`] whose request is
//! served next. The engine owns the loop and the streams.
//!
//! Never: knows a device, a clock, a channel or another station. Everything here is pure: the same seed,
//! choice and place in the answer draw the same token on any agent, so that an answer can go on elsewhere.

pub mod fair;
pub mod sample;
pub mod stop;

use hypic_domain::logits::Need;

pub use fair::FairQueue;
pub use sample::{Draw, Sampler};
pub use stop::{Limits, check};

/// Why no token could be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The model gave a NaN or an infinity.
    #[error("a logit is not finite")]
    ReadLogits,
    /// The draw needs more of the row than was landed.
    #[error("the draw needs {needed:?} of the logits")]
    FindLogits {
        /// What [`Sampler::need`] asks.
        needed: Need,
    },
    /// Bias and masks leave nothing to draw.
    #[error("no token is left to draw from")]
    DrawToken,
}
