//! What the live rows of a step attend to, and how that is cut into jobs.

mod lists;

use hypic_domain::model::FullShape;

use crate::choice::{AttentionForm, attention_form, gathers};
use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Fresh, Result};

pub(crate) use lists::Lists;

/// Query rows (live rows x heads that share a key head) of a tile of device/attention.cuh.
pub(crate) const TILE_ROWS: usize = 128;
/// Width of MLA's latent, which is a token's value and the first part of its key.
pub(crate) const LATENT: usize = 512;
/// Width of the part of its key behind the latent.
pub(crate) const LATENT_ROPE: usize = 64;
/// Tokens of a tile that was gathered before.
pub(crate) const GATHERED: usize = 96;
pub(crate) const MERGE_WORDS: usize = 3;
const JOB_WORDS: usize = 6;

/// A token whose key and value lie in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Where it lies: page x page tokens + place in the page.
    pub slot: u32,
    /// Its global position.
    pub position: u32,
}

/// One request's share of a step.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// All its tokens by ascending position: those of cached bodies, and live ones, this step's too. Several
    /// requests may name the same slots.
    pub tokens: &'a [Token],
    /// Global positions of its live rows in this step; each is one of the tokens.
    pub rows: &'a [u32],
}

/// The contexts of a step on the device; the same for all full layers.
pub struct Contexts {
    pub(crate) shape: FullShape,
    pub(crate) page_tokens: usize,
    pub(crate) rows: usize,
    pub(crate) jobs: usize,
    pub(crate) positions_end: usize,
    slots_end: usize,
    pub(crate) job_table: Buffer<u32>,
    pub(crate) tokens: Buffer<u32>,
    pub(crate) positions: Buffer<u32>,
    pub(crate) seen: Buffer<u32>,
    pub(crate) row_places: Buffer<u32>,
    /// Where the tokens of each row's context begin in `tokens`.
    pub(crate) row_lists: Buffer<u32>,
    pub(crate) merge: Buffer<u32>,
    pub(crate) partial_out: Buffer<f32>,
    pub(crate) partial_sum: Buffer<f32>,
    /// Where lists are whole tiles, and jobs begin at one: the keys and values that attention over gathered tokens
    /// reads, of the layer that attends.
    pub(crate) gathered: Option<[Buffer<u8>; 2]>,
}

impl Contexts {
    /// Copies the tables of `contexts` to the device, cut into jobs that fill it.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when tokens do not ascend, a row is none of its context's tokens, or the shape
    /// is not one of the kernels'. [`Error::CallDriver`] when the device has no room.
    pub fn new(
        device: &Device,
        shape: FullShape,
        page_tokens: usize,
        contexts: &[Context<'_>],
    ) -> Result<Self> {
        check(shape, page_tokens)?;
        let rows_per_tile = TILE_ROWS / (shape.heads / shape.kv_heads);
        // Causal rows see half of their own tokens, and seams half of all.
        let read =
            |context: &Context<'_>| context.rows.len().div_ceil(rows_per_tile) * context.tokens.len() / 2;
        let tokens = contexts.iter().map(|context| context.tokens.len()).sum();
        let gathers = gathers(contexts.iter().map(read).sum(), tokens);
        let has_form =
            shape.value == shape.key && attention_form(device.capability()) == AttentionForm::Hopper;
        Self::cut(device, (shape, page_tokens), contexts, (None, gathers && has_form))
    }

    /// The same with at most `most` tokens in a job, a multiple of a tile, and with or without room for tokens that are
    /// gathered before, in tiles of 96 in the place of 64.
    ///
    /// # Errors
    /// As [`Contexts::new`].
    pub fn cut(
        device: &Device,
        (shape, page_tokens): (FullShape, usize),
        contexts: &[Context<'_>],
        (most, gathers): (Option<usize>, bool),
    ) -> Result<Self> {
        let lists = Lists::cut(device, (shape, page_tokens), contexts, (most, gathers), |tokens| tokens)?;
        let room = Room { jobs: lists.jobs(), tokens: lists.tokens.len(), partial_rows: lists.partial_rows };
        Self::with_room(device, (shape, page_tokens), &lists, room)
    }

    /// The same with room for longer ones: [`Contexts::take`] takes them without moving anything.
    pub(crate) fn roomy(device: &Device, of: (FullShape, usize), lists: &Lists) -> Result<Self> {
        let room = Room {
            jobs: lists.jobs().next_power_of_two(),
            tokens: (lists.tokens.len() + 1).next_power_of_two(),
            partial_rows: (lists.partial_rows + 1).next_power_of_two(),
        };
        Self::with_room(device, of, lists, room)
    }

    fn with_room(
        device: &Device,
        (shape, page_tokens): (FullShape, usize),
        lists: &Lists,
        room: Room,
    ) -> Result<Self> {
        let FullShape { heads, kv_heads, .. } = shape;
        let width = output_width(shape);
        let place = |len: usize| Buffer::fresh(device, len, Fresh::Anything);
        let gathered = || Buffer::fresh(device, room.tokens / 2 * kv_heads * width * 2, Fresh::Anything);
        let rows = lists.positions.len();
        let mut contexts = Self {
            gathered: if lists.gathers() { Some([gathered()?, gathered()?]) } else { None },
            shape,
            page_tokens,
            rows,
            jobs: room.jobs,
            positions_end: 0,
            slots_end: 0,
            job_table: place(room.jobs * JOB_WORDS)?,
            tokens: place(room.tokens)?,
            positions: place(rows)?,
            seen: place(rows)?,
            row_places: place(rows)?,
            row_lists: place(rows)?,
            merge: place(rows * MERGE_WORDS)?,
            partial_out: Buffer::fresh(device, room.partial_rows * heads * width, Fresh::Anything)?,
            partial_sum: Buffer::fresh(device, room.partial_rows * heads * 2, Fresh::Anything)?,
        };
        contexts.write(lists)?;
        Ok(contexts)
    }

    /// Takes over other contexts of as many rows, in the same places on the device. False, and nothing changed, where they
    /// do not fit.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when a copy fails.
    pub(crate) fn take(&mut self, lists: &Lists) -> Result<bool> {
        let fits = self.has_room(lists) && lists.tokens.len() <= self.tokens.len();
        if fits {
            self.write(lists)?;
        }
        Ok(fits)
    }

    /// The same where every list is the one before or has one token more, which [`Contexts::append`] puts there.
    ///
    /// # Errors
    /// As [`Contexts::take`].
    pub(crate) fn take_grown(&mut self, lists: &Lists) -> Result<bool> {
        let fits = self.has_room(lists);
        if fits {
            self.write_rows(lists)?;
        }
        Ok(fits)
    }

    /// Puts the token of every row, which is the last that it sees, into the row's list: one launch.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when it fails.
    pub(crate) fn append(&mut self, device: &Device) -> Result<()> {
        Launch::new(device, "append_tokens", [self.rows.div_ceil(128), 1, 1], 128)
            .read(&self.row_places)
            .read(&self.positions)
            .read(&self.row_lists)
            .read(&self.seen)
            .write(&mut self.tokens)
            .int(self.rows)
            .run()
    }

    fn has_room(&self, lists: &Lists) -> bool {
        let partial_rows = self.partial_sum.len() / (2 * self.shape.heads);
        lists.positions.len() == self.rows && lists.jobs() <= self.jobs && lists.partial_rows <= partial_rows
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        self.tokens.write_part(0, &lists.tokens)?;
        self.row_lists.write(&lists.row_lists)?;
        self.write_rows(lists)
    }

    fn write_rows(&mut self, lists: &Lists) -> Result<()> {
        // Jobs of no rows where there are none.
        let mut jobs = lists.jobs.clone();
        jobs.resize(self.job_table.len(), 0);
        self.positions_end = lists.positions_end;
        self.slots_end = lists.slots_end;
        self.job_table.write(&jobs)?;
        self.positions.write(&lists.positions)?;
        self.seen.write(&lists.seen)?;
        self.row_places.write(&lists.row_places)?;
        self.merge.write(&lists.merge)
    }

    /// What [`gather_kv`](crate::gather_kv) brought last: keys and values, as bytes of bf16.
    pub fn gathered(&self) -> Option<&[Buffer<u8>; 2]> {
        self.gathered.as_ref()
    }

    /// Live rows of all contexts.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks per key head that attend.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Checks that a table of angles `[positions, rotary]` reaches every position.
    pub(crate) fn check_angles(&self, rope: &Buffer<f32>) -> Result<()> {
        let angles = self.positions_end * self.shape.rotary;
        Error::unless(rope.len() >= angles, "the angles", format!("at least {angles}"), rope.len())
    }

    /// Checks that keys and values are whole pages and hold every slot.
    pub(crate) fn check_pages<E: Float, const N: usize>(&self, pages: [&Buffer<E>; N]) -> Result<()> {
        let FullShape { kv_heads, key: width, .. } = self.shape;
        let page = self.page_tokens * kv_heads * width;
        let least = self.slots_end.div_ceil(self.page_tokens) * page;
        for buffer in pages {
            let fits = buffer.len() >= least && buffer.len().is_multiple_of(page);
            Error::unless(fits, "the pages", format!("whole pages, at least {least} values"), buffer.len())?;
        }
        Ok(())
    }
}

/// What the tables on the device have room for.
struct Room {
    jobs: usize,
    tokens: usize,
    partial_rows: usize,
}

fn check(shape: FullShape, page_tokens: usize) -> Result<()> {
    let FullShape { heads, kv_heads, key, value, rotary } = shape;
    Error::unless(page_tokens > 0, "tokens of a page", "above zero", page_tokens)?;
    if value == 0 {
        return check_latent(shape);
    }
    let width = matches!(key, 64 | 128 | 256) && value == key;
    Error::unless(width, "the head widths", "64, 128 or 256, keys as values", format!("{key} and {value}"))?;
    let shared =
        kv_heads > 0 && heads.is_multiple_of(kv_heads) && (1..=TILE_ROWS).contains(&(heads / kv_heads));
    Error::unless(shared, "the heads", format!("1 to {TILE_ROWS} for each of {kv_heads}"), heads)?;
    let rotated = rotary == 0 || (rotary.is_power_of_two() && (16..=key).contains(&rotary));
    let expected = format!("0 or a power of two from 16 to {key}");
    Error::unless(rotated, "the rotated width", expected, rotary)
}

/// Whether there is a kernel for a shape whose values are 0: MLA's.
fn check_latent(shape: FullShape) -> Result<()> {
    let FullShape { heads, kv_heads, key, rotary, .. } = shape;
    Error::unless(
        key == LATENT + LATENT_ROPE,
        "the head widths",
        format!("{} for keys without values", LATENT + LATENT_ROPE),
        key,
    )?;
    Error::unless(kv_heads == 1, "heads of keys without values", 1, kv_heads)?;
    Error::unless((1..=TILE_ROWS).contains(&heads), "the heads", format!("1 to {TILE_ROWS}"), heads)?;
    let rotated = rotary == 0 || rotary == LATENT_ROPE;
    Error::unless(rotated, "the rotated width", format!("0 or {LATENT_ROPE}, behind the latent"), rotary)
}

/// Values of a head's output: MLA's values are the latent part of its keys.
fn output_width(shape: FullShape) -> usize {
    if shape.value == 0 { LATENT } else { shape.value }
}
