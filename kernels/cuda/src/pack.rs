use hypic_domain::tuple::Dtype;

use crate::launch::Launch;
use crate::layout::{ALIGNMENT, NONE};
use crate::memory::Float;
use crate::rows::{THREADS, blocks};
use crate::{Buffer, Device, Error, Fresh, Result, StoredAs};

/// Byte offsets of `T` and of `S` of one (segment, head); none leaves that part out.
pub type Place = (Option<u64>, Option<u64>);

/// Where the summaries of (segment, head) pairs lie in an arena, on the device.
pub struct Places {
    pub(crate) transition_of: Buffer<u64>,
    pub(crate) state_of: Buffer<u64>,
    pub(crate) end: u64,
    width: usize,
    stored: StoredAs,
}

impl Places {
    /// Copies byte offsets of (`T`, `S`), one pair per (segment, head), to the device; none leaves that part
    /// out.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for an offset that is not aligned, or another width than 64 or 128.
    pub fn new(device: &Device, width: usize, stored: StoredAs, places: &[Place]) -> Result<Self> {
        Error::unless(matches!(width, 64 | 128), "the head width", "64 or 128", width)?;
        let size = (width * width * stored.size()) as u64;
        let mut end = 0;
        for offset in places.iter().flat_map(|&(t, s)| [t, s]).flatten() {
            Error::unless(offset.is_multiple_of(ALIGNMENT), "an offset", "aligned to 128 bytes", offset)?;
            end = end.max(offset.saturating_add(size));
        }
        let table = |part: fn(&Place) -> Option<u64>| {
            let offsets: Vec<u64> = places.iter().map(|place| part(place).unwrap_or(NONE)).collect();
            Buffer::from_slice(device, &offsets)
        };
        Ok(Self { transition_of: table(|p| p.0)?, state_of: table(|p| p.1)?, end, width, stored })
    }

    /// Number of (segment, head) pairs.
    pub fn len(&self) -> usize {
        self.state_of.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.state_of.is_empty()
    }

    /// Checks that `arena` holds all places, and that there are as many values as places.
    fn check(&self, arena: &Buffer<u8>, values: [usize; 2]) -> Result<()> {
        let size = self.len() * self.width * self.width;
        Error::unless(self.end <= arena.len() as u64, "the arena", self.end, arena.len())?;
        Error::unless(values == [size; 2], "T and S", size, format!("{values:?}"))
    }

    /// Checks that there is one place per pair, in this format, for heads of 128.
    pub(crate) fn check_pairs(&self, pairs: usize, stored: StoredAs) -> Result<()> {
        Error::unless(self.len() == pairs, "places", pairs, self.len())?;
        let fits = self.stored == stored && self.width == 128;
        Error::unless(fits, "the places' form", format!("{stored:?} of 128"), format!("{:?}", self.stored))
    }

    fn kernel(&self, verb: &str) -> String {
        format!("{verb}_tiles_{}_{}", self.width, self.stored.suffix())
    }
}

/// One layer of a body: tiles of layout 1 in memory of their own, and where in it they begin.
pub(crate) struct Tiles {
    pub(crate) bytes: Buffer<u8>,
    /// Byte offset of every head's `T`; a dead head has none.
    pub(crate) transition: Vec<Option<u64>>,
    /// Byte offset of every head's `S`.
    pub(crate) state: Vec<u64>,
    width: usize,
    stored: StoredAs,
}

impl Tiles {
    /// Room for the heads of a layer: `T` of the live ones, then `S` of all.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub(crate) fn fresh(device: &Device, live: &[bool], width: usize, stored: StoredAs) -> Result<Self> {
        let alive = live.iter().filter(|live| **live).count();
        let size = (alive + live.len()) * tile_size(width, stored);
        Self::around(Buffer::fresh(device, size, Fresh::Anything)?, live, width, stored)
    }

    /// Those that lie at the beginning of `bytes`, in that order.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for memory that is too short.
    pub(crate) fn around(bytes: Buffer<u8>, live: &[bool], width: usize, stored: StoredAs) -> Result<Self> {
        let mut next = (0..).map(|tile| tile * tile_size(width, stored) as u64);
        let transition: Vec<Option<u64>> =
            live.iter().map(|&live| if live { next.next() } else { None }).collect();
        let state: Vec<u64> = next.take(live.len()).collect();
        let tiles = Self { bytes, transition, state, width, stored };
        Error::unless(tiles.end() <= tiles.bytes.len(), "the tiles", tiles.end(), tiles.bytes.len())?;
        Ok(tiles)
    }

    /// Behind the last tile.
    pub(crate) fn end(&self) -> usize {
        self.state.last().map_or(0, |last| *last as usize + tile_size(self.width, self.stored))
    }

    /// From `T` of the live heads and `S` of all, fp32, row-major.
    ///
    /// # Errors
    /// As [`Tiles::fresh`] and [`pack_tiles`].
    pub(crate) fn packed(
        device: &Device,
        (live, width, stored): (&[bool], usize, StoredAs),
        [transition, state]: [&Buffer<f32>; 2],
    ) -> Result<Self> {
        let mut tiles = Self::fresh(device, live, width, stored)?;
        let nothing = |len: usize| Buffer::<f32>::fresh(device, len, Fresh::Anything);
        // The kernel packs pairs; where one part has no place, its values are not read.
        let places: Vec<_> = tiles.transition.iter().flatten().map(|&at| (Some(at), None)).collect();
        let places = Places::new(device, width, stored, &places)?;
        pack_tiles(device, &places, [transition, &nothing(transition.len())?], &mut tiles.bytes)?;
        let places: Vec<_> = tiles.state.iter().map(|&at| (None, Some(at))).collect();
        let places = Places::new(device, width, stored, &places)?;
        pack_tiles(device, &places, [&nothing(state.len())?, state], &mut tiles.bytes)?;
        Ok(tiles)
    }

    /// Where `T` and `S` of every head lie.
    ///
    /// # Errors
    /// As [`Places::new`].
    pub(crate) fn places(&self, device: &Device) -> Result<Places> {
        let heads = self.transition.iter().zip(&self.state);
        let places: Vec<Place> = heads.map(|(&transition, &state)| (transition, Some(state))).collect();
        Places::new(device, self.width, self.stored, &places)
    }

    /// `T` and `S` of every head, fp32, row-major; a missing `T` is zero.
    ///
    /// # Errors
    /// As [`unpack_tiles`].
    pub(crate) fn unpacked(&self, device: &Device) -> Result<[Buffer<f32>; 2]> {
        let places = self.places(device)?;
        let values = || Buffer::fresh(device, self.state.len() * self.width * self.width, Fresh::Anything);
        let (mut transition, mut state) = (values()?, values()?);
        unpack_tiles(device, &places, &self.bytes, [&mut transition, &mut state])?;
        Ok([transition, state])
    }

    /// The same in other memory, which holds the same bytes from its beginning on.
    ///
    /// # Errors
    /// As [`Tiles::around`].
    pub(crate) fn moved(&self, bytes: Buffer<u8>) -> Result<Self> {
        let live: Vec<bool> = self.transition.iter().map(Option::is_some).collect();
        Self::around(bytes, &live, self.width, self.stored)
    }

    /// Appends the addresses of every head's `T` and `S`. Whoever uses them keeps the tiles.
    pub(crate) fn addresses(&self, [transition, state]: [&mut Vec<u64>; 2]) {
        let address = |at: u64| self.bytes.address_of(at as usize);
        transition.extend(self.transition.iter().map(|at| at.map_or(NONE, address)));
        state.extend(self.state.iter().map(|&at| address(at)));
    }
}

fn tile_size(width: usize, stored: StoredAs) -> usize {
    (width * width * stored.size()).next_multiple_of(ALIGNMENT as usize)
}

/// Stores `T` and `S`, each fp32 `[places, width, width]` row-major, as device tiles (layout 1) at `places`
/// of the arena. Values over the range of fp16 are clamped.
///
/// # Errors
/// [`Error::CheckShape`] when sizes or offsets do not fit, [`Error::CallDriver`] when the launch fails.
pub fn pack_tiles(
    device: &Device,
    places: &Places,
    [transition, state]: [&Buffer<f32>; 2],
    arena: &mut Buffer<u8>,
) -> Result<()> {
    places.check(arena, [transition.len(), state.len()])?;
    Launch::new(device, places.kernel("pack"), [places.len(), 1, 1], places.width)
        .read(transition)
        .read(state)
        .read(&places.transition_of)
        .read(&places.state_of)
        .write(arena)
        .run()
}

/// The inverse of [`pack_tiles`]; a missing `T` or `S` reads as zero.
///
/// # Errors
/// [`Error::CheckShape`] when sizes or offsets do not fit, [`Error::CallDriver`] when the launch fails.
pub fn unpack_tiles(
    device: &Device,
    places: &Places,
    arena: &Buffer<u8>,
    [transition, state]: [&mut Buffer<f32>; 2],
) -> Result<()> {
    places.check(arena, [transition.len(), state.len()])?;
    Launch::new(device, places.kernel("unpack"), [places.len(), 1, 1], places.width)
        .read(arena)
        .read(&places.transition_of)
        .read(&places.state_of)
        .write(transition)
        .write(state)
        .run()
}

/// Plain rows of `width` values as tuples store them, in fp32.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn widen(
    device: &Device,
    (dtype, width): (Dtype, usize),
    stored: Buffer<u8>,
) -> Result<Buffer<f32>> {
    let (row, rows) = row_of(dtype, width, stored.len())?;
    Error::unless(rows * row == stored.len(), "the stored rows", format!("rows of {row}"), stored.len())?;
    if dtype == Dtype::F32 {
        return Ok(stored.cast());
    }
    let mut values = Buffer::fresh(device, rows * width, Fresh::Anything)?;
    if dtype == Dtype::I8 {
        unpack_rows(device, Codes::Int8, width, &stored, &mut values)?;
    } else {
        let kernel = format!("widen_{}", dtype.name());
        let grid = [blocks(device, values.len())?, 1, 1];
        let count = values.len();
        Launch::new(device, kernel, grid, THREADS).read(&stored).write(&mut values).int(count).run()?;
    }
    Ok(values)
}

/// The inverse of [`widen`]; what is not finite becomes NaN.
///
/// # Errors
/// As [`widen`].
pub(crate) fn narrow(
    device: &Device,
    (dtype, width): (Dtype, usize),
    values: &Buffer<f32>,
) -> Result<Buffer<u8>> {
    let rows = values.len().checked_div(width).unwrap_or(0);
    let (row, _) = row_of(dtype, width, 0)?;
    let mut stored = Buffer::fresh(device, rows * row, Fresh::Anything)?;
    if dtype == Dtype::I8 {
        pack_rows(device, Codes::Int8, width, values, &mut stored)?;
    } else {
        let kernel = format!("narrow_{}", dtype.name());
        let grid = [blocks(device, values.len())?, 1, 1];
        let count = values.len();
        Launch::new(device, kernel, grid, THREADS).read(values).write(&mut stored).int(count).run()?;
    }
    Ok(stored)
}

/// Bytes of a row of `width`, and how many rows `bytes` hold.
fn row_of(dtype: Dtype, width: usize, bytes: usize) -> Result<(usize, usize)> {
    let row = width * dtype.size() + if dtype == Dtype::I8 { 4 } else { 0 };
    Error::unless(width > 0, "the width of rows", "at least 1", width)?;
    Ok((row, bytes / row))
}

/// Stored rows in the format of activations.
///
/// # Errors
/// As [`widen`].
pub(crate) fn to_compute<E: Float>(
    device: &Device,
    (dtype, width): (Dtype, usize),
    stored: Buffer<u8>,
) -> Result<Buffer<E>> {
    if dtype == E::DTYPE {
        return Ok(stored.cast());
    }
    let values = widen(device, (dtype, width), stored)?;
    Ok(narrow(device, (E::DTYPE, width), &values)?.cast())
}

/// Rows in the format of activations as they are stored.
///
/// # Errors
/// As [`widen`].
pub(crate) fn from_compute<E: Float>(
    device: &Device,
    (dtype, width): (Dtype, usize),
    values: Buffer<E>,
) -> Result<Buffer<u8>> {
    let values = values.into_bytes();
    if dtype == E::DTYPE {
        return Ok(values);
    }
    let values = widen(device, (E::DTYPE, width), values)?;
    narrow(device, (dtype, width), &values)
}

/// Makes `transition`, `[heads, width, width]`, the identity of every head.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn set_identity(device: &Device, transition: &mut Buffer<f32>, width: usize) -> Result<()> {
    let square = width * width;
    let fits = (1..=128).contains(&width) && transition.len().is_multiple_of(square);
    Error::unless(fits, "T", format!("heads of {width} x {width}, at most 128"), transition.len())?;
    transition.fill(0, transition.len(), 0)?;
    let heads = transition.len() / square;
    Launch::new(device, "identity", [heads, 1, 1], 128).write(transition).int(width).run()
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
pub fn pack_rows(
    device: &Device,
    codes: Codes,
    width: usize,
    x: &Buffer<f32>,
    coded: &mut Buffer<u8>,
) -> Result<()> {
    let rows = check_rows(x.len(), coded.len(), width)?;
    let kernel = format!("pack_rows_{}", codes.suffix());
    Launch::new(device, kernel, [rows, 1, 1], 32).read(x).write(coded).int(width).run()
}

/// The inverse of [`pack_rows`].
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn unpack_rows(
    device: &Device,
    codes: Codes,
    width: usize,
    coded: &Buffer<u8>,
    x: &mut Buffer<f32>,
) -> Result<()> {
    let rows = check_rows(x.len(), coded.len(), width)?;
    let kernel = format!("unpack_rows_{}", codes.suffix());
    Launch::new(device, kernel, [rows, 1, 1], 32).read(coded).write(x).int(width).run()
}
