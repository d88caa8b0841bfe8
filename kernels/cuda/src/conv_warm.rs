use crate::launch::Launch;
use crate::memory::{Float, Table};
use crate::{Buffer, Device, Error, Result, Shape};

/// Taps of the short convolution; a tail is `TAPS - 1` rows.
pub const TAPS: usize = 4;

// As device/conv_warm.cu has them.
const ROWS_PER_BLOCK: usize = 16;
pub(crate) const HEADS_PER_BLOCK: usize = 4;

/// Where a row of raw inputs lies.
#[derive(Clone, Copy)]
pub enum RawRow<'a, E: Float> {
    /// Nowhere: zeros.
    Zeros,
    /// In a buffer, from this value on.
    At(&'a Buffer<E>, usize),
    /// Among other things, from this byte on.
    In(&'a Buffer<u8>, usize),
}

impl<E: Float> RawRow<'_, E> {
    /// Its address; the buffer must hold all of it.
    fn address(self, channels: usize) -> Result<u64> {
        match self {
            Self::Zeros => Ok(0),
            Self::At(buffer, first) => {
                let within = first + channels <= buffer.len();
                Error::unless(within, "a row of raw inputs", format!("within {}", buffer.len()), first)?;
                Ok(buffer.address_of(first))
            }
            Self::In(buffer, first) => {
                let within = first + channels * size_of::<E>() <= buffer.len() && first.is_multiple_of(16);
                Error::unless(within, "a row of raw inputs", format!("within {}", buffer.len()), first)?;
                Ok(buffer.address_of(first))
            }
        }
    }
}

/// Rows of one sequence that follow each other.
#[derive(Clone, Copy)]
pub struct Span<'a, E: Float> {
    /// How many.
    pub rows: usize,
    /// What stands to the left of the first, oldest first.
    pub left: [RawRow<'a, E>; TAPS - 1],
}

/// Causal convolution and SiLU of packed rows; queries and keys of unit length behind it, queries times `width^-0.5`.
pub struct ConvWarm<'a, E: Float> {
    /// The layer's heads; queries, keys and values have one width.
    pub shape: Shape,
    /// Raw queries, keys, values, `[rows, channels]`.
    pub x: &'a Buffer<E>,
    /// `[channels, TAPS]`, oldest tap first.
    pub taps: &'a Buffer<f32>,
    /// The spans that the rows consist of, in order.
    pub spans: &'a [Span<'a, E>],
    /// Queries, `[rows, key heads, width]`.
    pub q: &'a mut Buffer<E>,
    /// Keys, likewise.
    pub k: &'a mut Buffer<E>,
    /// Values, `[rows, heads, width]`.
    pub v: &'a mut Buffer<E>,
}

/// Runs the convolution.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit each other, [`Error::CallDriver`] when the launch fails.
pub fn conv_warm<E: Float>(device: &Device, conv: ConvWarm<'_, E>) -> Result<()> {
    let ConvWarm { shape, x, taps, spans, q, k, v } = conv;
    shape.check()?;
    let Shape { heads, key_heads, width } = shape;
    let channels = (2 * key_heads + heads) * width;
    let rows: usize = spans.iter().map(|span| span.rows).sum();
    Error::unless(taps.len() == channels * TAPS, "the taps", channels * TAPS, taps.len())?;
    for (what, found, each) in [
        ("x", x.len(), channels),
        ("q", q.len(), key_heads * width),
        ("k", k.len(), key_heads * width),
        ("v", v.len(), heads * width),
    ] {
        Error::unless(found == rows * each, what, rows * each, found)?;
    }
    let (mut span_of, mut first_of, mut left) = (Vec::with_capacity(rows), Vec::new(), Vec::new());
    for (number, span) in spans.iter().enumerate() {
        first_of.push(span_of.len() as u32);
        span_of.resize(span_of.len() + span.rows, number as u32);
        for row in span.left {
            left.push(row.address(channels)?);
        }
    }
    let span_of = Table::new(device, &span_of)?;
    let first_of = Table::new(device, &first_of)?;
    let left = Table::new(device, &left)?;
    Launch::new(
        device,
        format!("conv_warm_{}", E::NAME),
        [rows.div_ceil(ROWS_PER_BLOCK), (2 * key_heads + heads).div_ceil(HEADS_PER_BLOCK), 1],
        128,
    )
    .read(x)
    .read(taps)
    .read(&span_of)
    .read(&first_of)
    .read(&left)
    .write(q)
    .write(k)
    .write(v)
    .int(rows)
    .int(key_heads)
    .int(heads)
    .int(width)
    .run()
}

/// The last raw inputs of sequences, oldest first, as one table of addresses: rows may lie in the tails themselves.
pub(crate) struct Tails {
    sources: Vec<u64>,
    channels: usize,
}

impl Tails {
    /// None yet.
    pub(crate) fn new(channels: usize) -> Self {
        Self { sources: Vec::new(), channels }
    }

    /// Names the rows of the next sequence's tail.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for a row outside its buffer.
    pub(crate) fn push<E: Float>(&mut self, rows: [RawRow<'_, E>; TAPS - 1]) -> Result<()> {
        for row in rows {
            self.sources.push(row.address(self.channels)?);
        }
        Ok(())
    }

    /// Writes the tails to `places`, values of `tails` at which they begin, one for each sequence. The buffers that
    /// the rows lie in must still be there.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when a tail does not fit, [`Error::CallDriver`] when the launch fails.
    pub(crate) fn write<E: Float>(
        &self,
        device: &Device,
        tails: &mut Buffer<E>,
        places: &[u64],
    ) -> Result<()> {
        let (count, size) = (places.len(), (TAPS - 1) * self.channels);
        Error::unless(self.sources.len() == count * (TAPS - 1), "tails", self.sources.len(), count)?;
        for &place in places {
            let within = place as usize + size <= tails.len();
            Error::unless(within, "a tail", format!("within {}", tails.len()), place)?;
        }
        let sources = Table::new(device, &self.sources)?;
        let places = Table::new(device, places)?;
        let kernel = format!("write_tails_{}", E::NAME);
        Launch::new(device, kernel, [self.channels.div_ceil(128), count, 1], 128)
            .read(&sources)
            .read(&places)
            .write(tails)
            .int(self.channels)
            .run()
    }
}
