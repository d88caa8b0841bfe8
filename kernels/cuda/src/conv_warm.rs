use half::bf16;

use crate::launch::Launch;
use crate::{Buffer, Device, Error, Result, Sequences};

/// Taps of the short convolution; a tail is `TAPS - 1` rows.
pub const TAPS: usize = 4;

const ROWS_PER_BLOCK: usize = 64;

/// Causal convolution and SiLU of packed rows, each sequence continuing from a stored tail.
pub struct ConvWarm<'a> {
    /// Raw inputs, `[rows, channels]`.
    pub x: &'a Buffer<bf16>,
    /// `[channels, TAPS]`, oldest tap first.
    pub weight: &'a Buffer<f32>,
    /// The sequences.
    pub sequences: &'a Sequences,
    /// For each sequence the tail before it, or -1 for zeros.
    pub tail_of: &'a [i32],
    /// Stored tails, `[.., TAPS - 1, channels]`, oldest row first.
    pub tails: &'a Buffer<bf16>,
    /// Outputs, `[rows, channels]`.
    pub y: &'a mut Buffer<bf16>,
    /// The last raw inputs of each sequence, `[sequences, TAPS - 1, channels]`.
    pub next_tail: &'a mut Buffer<bf16>,
}

/// Runs the convolution.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit each other, [`Error::CallDriver`] when the launch fails.
pub fn conv_warm(device: &Device, conv: ConvWarm<'_>) -> Result<()> {
    let channels = conv.weight.len() / TAPS;
    let (sequences, size) = (conv.sequences, conv.sequences.rows * channels);
    let tails = conv.tails.len() / ((TAPS - 1) * channels).max(1);
    Error::unless(conv.weight.len() == channels * TAPS, "the taps", channels * TAPS, conv.weight.len())?;
    Error::unless(conv.x.len() == size, "x", size, conv.x.len())?;
    Error::unless(conv.y.len() == size, "y", size, conv.y.len())?;
    let next = sequences.len() * (TAPS - 1) * channels;
    Error::unless(conv.next_tail.len() == next, "the next tails", next, conv.next_tail.len())?;
    Error::unless(conv.tail_of.len() == sequences.len(), "tails of", sequences.len(), conv.tail_of.len())?;
    for &tail in conv.tail_of {
        Error::unless(tail < tails as i32, "a tail", format!("under {tails}"), tail)?;
    }
    let tail_of = Buffer::from_slice(device, conv.tail_of)?;
    let blocks = sequences.longest.div_ceil(ROWS_PER_BLOCK).max(1);
    Launch::new(device, "conv_warm", [channels.div_ceil(128), sequences.len(), blocks], 128)
        .read(conv.x)
        .read(conv.weight)
        .read(&sequences.starts)
        .read(&tail_of)
        .read(conv.tails)
        .write(conv.y)
        .write(conv.next_tail)
        .int(channels)
        .run()
}
