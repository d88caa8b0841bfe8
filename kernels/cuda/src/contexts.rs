//! What the live rows of a step attend to, and how that is cut into jobs.

use hypic_domain::model::FullShape;

use crate::choice::{AttentionForm, attention_form, gathers, tokens_per_job};
use crate::memory::Float;
use crate::mla;
use crate::{Buffer, Device, Error, Fresh, Result};

// Query rows (live rows x heads that share a key head) and tokens of a tile of device/attention.cuh.
pub(crate) const TILE_ROWS: usize = 128;
const TILE_TOKENS: usize = 64;
/// Tokens of a tile that was gathered before.
pub(crate) const GATHERED: usize = 96;
const WHOLE: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;
pub(crate) const MERGE_WORDS: usize = 3;

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

/// Live rows that one block takes, and how many tokens the last of them sees.
struct Tile {
    context: usize,
    first_row: usize,
    rows: usize,
    seen: usize,
}

struct Job {
    first_row: usize,
    rows: usize,
    list: usize,
    begin: usize,
    end: usize,
    partial: u32,
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
        check(shape, page_tokens)?;
        let FullShape { heads, kv_heads, .. } = shape;
        let width = output_width(shape);
        let rows_per_tile = TILE_ROWS / (heads / kv_heads);
        let tile_tokens = if gathers { GATHERED } else { TILE_TOKENS };
        let (mut tokens, mut lists, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
        let (mut positions, mut seen) = (Vec::new(), Vec::new());
        let (mut row_places, mut row_lists) = (Vec::new(), Vec::new());
        let (mut positions_end, mut slots_end) = (0, 0);
        let place = |slot: u32| {
            let slot = slot as usize;
            (slot / page_tokens * kv_heads * page_tokens + slot % page_tokens) as u32
        };
        for (index, context) in contexts.iter().enumerate() {
            lists.push(tokens.len() / 2);
            let ascending = context.tokens.is_sorted_by(|a, b| a.position < b.position);
            Error::unless(ascending, "the tokens of a context", "in order of their positions", index)?;
            for token in context.tokens {
                tokens.extend([place(token.slot), token.position]);
                slots_end = slots_end.max(token.slot as usize + 1);
            }
            while gathers && !tokens.len().is_multiple_of(2 * GATHERED) {
                tokens.extend([NOWHERE, 0]);
            }
            positions_end =
                positions_end.max(context.tokens.last().map_or(0, |token| token.position as usize + 1));
            for rows in context.rows.chunks(rows_per_tile) {
                let first_row = positions.len();
                for &row in rows {
                    let at = context.tokens.binary_search_by_key(&row, |token| token.position);
                    let at = at.map_err(|_| Error::CheckShape {
                        what: "the position of a row",
                        expected: "that of a token of its context".to_owned(),
                        found: row.to_string(),
                    })?;
                    positions.push(row);
                    seen.push(at as u32 + 1);
                    row_places.push(place(context.tokens[at].slot));
                    row_lists.push(lists[index] as u32);
                }
                let most_seen = seen[first_row..].iter().max().copied().unwrap_or(0) as usize;
                tiles.push(Tile { context: index, first_row, rows: rows.len(), seen: most_seen });
            }
        }
        Error::unless(
            u32::try_from(slots_end * kv_heads).is_ok(),
            "slots x kv heads",
            "under 2^32",
            slots_end * kv_heads,
        )?;

        let work: usize = tiles.iter().map(|tile| tile.seen).sum();
        let filling = || tokens_per_job(work * kv_heads, device.multiprocessors());
        let most = most.unwrap_or_else(|| filling().next_multiple_of(tile_tokens));
        let fits = most > 0 && most.is_multiple_of(tile_tokens);
        Error::unless(fits, "tokens of a job", format!("a multiple of {tile_tokens}"), most)?;
        let mut jobs = Vec::new();
        let mut merge = vec![0u32; positions.len() * MERGE_WORDS];
        let mut partial_rows = 0;
        for tile in &tiles {
            let count = tile.seen.div_ceil(most);
            // Ranges of about the same length.
            let length = tile.seen.div_ceil(count.max(1)).next_multiple_of(tile_tokens);
            let first_partial = partial_rows;
            for begin in (0..tile.seen).step_by(length.max(1)) {
                let partial = if count == 1 { WHOLE } else { partial_rows as u32 };
                partial_rows += if count == 1 { 0 } else { tile.rows };
                let end = tile.seen.min(begin + length);
                let (first_row, rows, list) = (tile.first_row, tile.rows, lists[tile.context]);
                jobs.push(Job { first_row, rows, list, begin, end, partial });
            }
            let parts = (partial_rows - first_partial) / tile.rows;
            for row in 0..tile.rows {
                let words = [(first_partial + row) as u32, tile.rows as u32, parts as u32];
                merge[(tile.first_row + row) * MERGE_WORDS..][..MERGE_WORDS].copy_from_slice(&words);
            }
        }
        // The longest first, so that the device ends with short ones.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.end - job.begin));
        let table: Vec<u32> = jobs
            .iter()
            .flat_map(|job| {
                let numbers = [job.first_row, job.rows, job.list, job.begin, job.end];
                numbers.map(|number| number as u32).into_iter().chain([job.partial])
            })
            .collect();
        let room = || Buffer::fresh(device, tokens.len() / 2 * kv_heads * width * 2, Fresh::Anything);
        Ok(Self {
            gathered: if gathers { Some([room()?, room()?]) } else { None },
            shape,
            page_tokens,
            rows: positions.len(),
            jobs: jobs.len(),
            positions_end,
            slots_end,
            job_table: Buffer::from_slice(device, &table)?,
            tokens: Buffer::from_slice(device, &tokens)?,
            positions: Buffer::from_slice(device, &positions)?,
            seen: Buffer::from_slice(device, &seen)?,
            row_places: Buffer::from_slice(device, &row_places)?,
            row_lists: Buffer::from_slice(device, &row_lists)?,
            merge: Buffer::from_slice(device, &merge)?,
            partial_out: Buffer::fresh(device, partial_rows * heads * width, Fresh::Anything)?,
            partial_sum: Buffer::fresh(device, partial_rows * heads * 2, Fresh::Anything)?,
        })
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

fn check(shape: FullShape, page_tokens: usize) -> Result<()> {
    let FullShape { heads, kv_heads, key, value, rotary } = shape;
    Error::unless(page_tokens > 0, "tokens of a page", "above zero", page_tokens)?;
    if value == 0 {
        return mla::check(shape);
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

/// Values of a head's output: MLA's values are the latent part of its keys.
fn output_width(shape: FullShape) -> usize {
    if shape.value == 0 { mla::LATENT } else { shape.value }
}
