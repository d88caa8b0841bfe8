use crate::launch::Launch;
use crate::layout::{ALIGNMENT, NONE};
use crate::{Buffer, Device, Error, Result, StoredAs};

/// Where packed summaries go or come from: byte offsets into the arena, one pair (`T`, `S`) per (segment, head).
fn offsets(
    device: &Device,
    width: usize,
    stored: StoredAs,
    places: &[(Option<u64>, Option<u64>)],
    arena: usize,
) -> Result<(Buffer<u64>, Buffer<u64>)> {
    Error::unless(matches!(width, 64 | 128), "the head width", "64 or 128", width)?;
    let size = (width * width * stored.size()) as u64;
    for offset in places.iter().flat_map(|&(t, s)| [t, s]).flatten() {
        let fits = offset.is_multiple_of(ALIGNMENT) && offset.saturating_add(size) <= arena as u64;
        Error::unless(fits, "an offset", format!("aligned and within {arena} bytes"), offset)?;
    }
    let t: Vec<u64> = places.iter().map(|place| place.0.unwrap_or(NONE)).collect();
    let s: Vec<u64> = places.iter().map(|place| place.1.unwrap_or(NONE)).collect();
    Ok((Buffer::from_slice(device, &t)?, Buffer::from_slice(device, &s)?))
}

/// Stores `T` and `S`, each fp32 `[places, width, width]` row-major, as device tiles (layout 1) at `places` of the arena.
/// Values over the range of fp16 are clamped.
///
/// # Errors
/// [`Error::CheckShape`] when sizes or offsets do not fit, [`Error::CallDriver`] when the launch fails.
pub fn pack_tiles(
    device: &Device,
    width: usize,
    stored: StoredAs,
    [transition, state]: [&Buffer<f32>; 2],
    places: &[(Option<u64>, Option<u64>)],
    arena: &mut Buffer<u8>,
) -> Result<()> {
    let (t, s) = offsets(device, width, stored, places, arena.len())?;
    let size = places.len() * width * width;
    Error::unless(transition.len() == size && state.len() == size, "T and S", size, state.len())?;
    Launch::new(device, format!("pack_tiles_{width}_{}", stored.suffix()), [places.len(), 1, 1], width)
        .read(transition)
        .read(state)
        .read(&t)
        .read(&s)
        .write(arena)
        .run()
}

/// The inverse of [`pack_tiles`]; a missing `T` or `S` reads as zero.
///
/// # Errors
/// [`Error::CheckShape`] when sizes or offsets do not fit, [`Error::CallDriver`] when the launch fails.
pub fn unpack_tiles(
    device: &Device,
    width: usize,
    stored: StoredAs,
    arena: &Buffer<u8>,
    places: &[(Option<u64>, Option<u64>)],
    [transition, state]: [&mut Buffer<f32>; 2],
) -> Result<()> {
    let (t, s) = offsets(device, width, stored, places, arena.len())?;
    let size = places.len() * width * width;
    Error::unless(transition.len() == size && state.len() == size, "T and S", size, state.len())?;
    Launch::new(device, format!("unpack_tiles_{width}_{}", stored.suffix()), [places.len(), 1, 1], width)
        .read(arena)
        .read(&t)
        .read(&s)
        .write(transition)
        .write(state)
        .run()
}

/// Eight-bit codes of a row, scaled so that its largest value takes the largest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Integers, largest 127.
    Int8,
    /// Floats with 3 bits of mantissa (e4m3), largest 448.
    Fp8,
}

impl Codes {
    fn suffix(self) -> &'static str {
        match self {
            Self::Int8 => "i8",
            Self::Fp8 => "e4m3",
        }
    }
}

fn check_rows(values: usize, bytes: usize, width: usize) -> Result<usize> {
    let fits = width > 0 && width.is_multiple_of(4) && values.is_multiple_of(width);
    Error::unless(fits, "values", format!("rows of {width}, a multiple of 4"), values)?;
    let rows = values / width;
    Error::unless(bytes == rows * (4 + width), "the coded rows", rows * (4 + width), bytes)?;
    Ok(rows)
}

/// Codes rows of `width` values, a multiple of 4: each becomes its fp32 scale, then `width` codes.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn pack_rows(device: &Device, codes: Codes, width: usize, x: &Buffer<f32>, coded: &mut Buffer<u8>) -> Result<()> {
    let rows = check_rows(x.len(), coded.len(), width)?;
    let kernel = format!("pack_rows_{}", codes.suffix());
    Launch::new(device, kernel, [rows, 1, 1], 32).read(x).write(coded).int(width).run()
}

/// The inverse of [`pack_rows`].
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn unpack_rows(device: &Device, codes: Codes, width: usize, coded: &Buffer<u8>, x: &mut Buffer<f32>) -> Result<()> {
    let rows = check_rows(x.len(), coded.len(), width)?;
    let kernel = format!("unpack_rows_{}", codes.suffix());
    Launch::new(device, kernel, [rows, 1, 1], 32).read(coded).write(x).int(width).run()
}
