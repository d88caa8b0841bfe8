//! The tables of contexts on the host.

use hypic_domain::model::FullShape;

use super::{Context, GATHERED, JOB_WORDS, MERGE_WORDS, TILE_ROWS, Token, check};
use crate::choice::tokens_per_job;
use crate::{Device, Error, Result};

// Tokens of a tile of device/attention.cuh.
const TILE_TOKENS: usize = 64;
const WHOLE: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// Live rows that one block takes, and how many tokens the last of them sees.
struct Tile {
    list: usize,
    first_row: usize,
    rows: usize,
    seen: usize,
}

/// The tables of contexts on the host, as [`Contexts`] has them.
pub(crate) struct Lists {
    pub(super) jobs: Vec<u32>,
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) seen: Vec<u32>,
    pub(super) row_places: Vec<u32>,
    pub(super) row_lists: Vec<u32>,
    pub(super) merge: Vec<u32>,
    pub(super) partial_rows: usize,
    pub(super) positions_end: usize,
    pub(super) slots_end: usize,
    tiles: Vec<Tile>,
    tile_tokens: usize,
}

impl Lists {
    pub(super) fn jobs(&self) -> usize {
        self.jobs.len() / JOB_WORDS
    }

    /// Whether lists are whole tiles of gathered tokens.
    pub(super) fn gathers(&self) -> bool {
        self.tile_tokens == GATHERED
    }

    /// Cuts `contexts` into jobs of at most `most` tokens, a multiple of a tile, or into as many as fill the device, in
    /// tiles of 64 tokens, or of 96 where they are gathered before. A list of so many tokens gets room for as many as
    /// `room_of` says.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when tokens do not ascend, a row is none of its context's tokens, or the shape is not one of
    /// the kernels'.
    pub(crate) fn cut(
        device: &Device,
        (shape, page_tokens): (FullShape, usize),
        contexts: &[Context<'_>],
        (most, gathers): (Option<usize>, bool),
        room_of: impl Fn(usize) -> usize,
    ) -> Result<Self> {
        check(shape, page_tokens)?;
        let FullShape { heads, kv_heads, .. } = shape;
        let rows_per_tile = TILE_ROWS / (heads / kv_heads);
        let (mut tokens, mut tiles) = (Vec::new(), Vec::new());
        let (mut positions, mut seen) = (Vec::new(), Vec::new());
        let (mut row_places, mut row_lists) = (Vec::new(), Vec::new());
        let (mut positions_end, mut slots_end) = (0, 0);
        let place = |slot: u32| place_of(slot, kv_heads, page_tokens);
        for (index, context) in contexts.iter().enumerate() {
            let list = tokens.len() / 2;
            let ascending = context.tokens.is_sorted_by(|a, b| a.position < b.position);
            Error::unless(ascending, "the tokens of a context", "in order of their positions", index)?;
            for token in context.tokens {
                tokens.extend([place(token.slot), token.position]);
                slots_end = slots_end.max(token.slot as usize + 1);
            }
            let room = list + room_of(context.tokens.len());
            if gathers {
                while tokens.len() < 2 * room.next_multiple_of(GATHERED) {
                    tokens.extend([NOWHERE, 0]);
                }
            } else {
                tokens.resize(2 * room, 0);
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
                    row_lists.push(list as u32);
                }
                let most_seen = seen[first_row..].iter().max().copied().unwrap_or(0) as usize;
                tiles.push(Tile { list, first_row, rows: rows.len(), seen: most_seen });
            }
        }
        Error::unless(
            u32::try_from(slots_end * kv_heads).is_ok(),
            "slots x kv heads",
            "under 2^32",
            slots_end * kv_heads,
        )?;

        let (jobs, merge) = (Vec::new(), Vec::new());
        let mut lists = Self {
            jobs,
            tokens,
            positions,
            seen,
            row_places,
            row_lists,
            merge,
            partial_rows: 0,
            positions_end,
            slots_end,
            tiles,
            tile_tokens: if gathers { GATHERED } else { TILE_TOKENS },
        };
        lists.cut_jobs(device, kv_heads, most)?;
        Ok(lists)
    }

    /// The contexts of a step after this one: row `i`, alone in its context, sees `seen` tokens, of which its own, at
    /// `position`, is the last and lies at `slot`.
    ///
    /// # Errors
    /// [`Error::CheckShape`] for another number of rows.
    pub(crate) fn grow(
        &mut self,
        device: &Device,
        (shape, page_tokens): (FullShape, usize),
        rows: impl Iterator<Item = (Token, usize)>,
    ) -> Result<()> {
        let mut count = 0;
        for (row, (token, seen)) in rows.enumerate().take(self.tiles.len()) {
            self.tiles[row].seen = seen;
            self.positions[row] = token.position;
            self.seen[row] = seen as u32;
            self.row_places[row] = place_of(token.slot, shape.kv_heads, page_tokens);
            self.positions_end = self.positions_end.max(token.position as usize + 1);
            self.slots_end = self.slots_end.max(token.slot as usize + 1);
            count += 1;
        }
        let alone = count == self.positions.len() && self.tiles.len() == count;
        Error::unless(alone, "rows that are alone in their contexts", self.positions.len(), count)?;
        self.cut_jobs(device, shape.kv_heads, None)
    }

    fn cut_jobs(&mut self, device: &Device, kv_heads: usize, most: Option<usize>) -> Result<()> {
        let work: usize = self.tiles.iter().map(|tile| tile.seen).sum();
        let tile_tokens = self.tile_tokens;
        let filling = || tokens_per_job(work * kv_heads, device.multiprocessors());
        let most = most.unwrap_or_else(|| filling().next_multiple_of(tile_tokens));
        let fits = most > 0 && most.is_multiple_of(tile_tokens);
        Error::unless(fits, "tokens of a job", format!("a multiple of {tile_tokens}"), most)?;
        let mut jobs: Vec<[usize; JOB_WORDS]> = Vec::new();
        self.merge = vec![0_u32; self.positions.len() * MERGE_WORDS];
        let mut partial_rows = 0;
        for tile in &self.tiles {
            let count = tile.seen.div_ceil(most);
            // Ranges of about the same length.
            let length = tile.seen.div_ceil(count.max(1)).next_multiple_of(tile_tokens);
            let first_partial = partial_rows;
            for begin in (0..tile.seen).step_by(length.max(1)) {
                let partial = if count == 1 { WHOLE as usize } else { partial_rows };
                partial_rows += if count == 1 { 0 } else { tile.rows };
                let end = tile.seen.min(begin + length);
                jobs.push([tile.first_row, tile.rows, tile.list, begin, end, partial]);
            }
            let parts = (partial_rows - first_partial) / tile.rows;
            for row in 0..tile.rows {
                let words = [(first_partial + row) as u32, tile.rows as u32, parts as u32];
                self.merge[(tile.first_row + row) * MERGE_WORDS..][..MERGE_WORDS].copy_from_slice(&words);
            }
        }
        self.partial_rows = partial_rows;
        // The longest first, so that the device ends with short ones.
        jobs.sort_by_key(|[_, _, _, begin, end, _]| std::cmp::Reverse(end - begin));
        self.jobs = jobs.into_iter().flatten().map(|number| number as u32).collect();
        Ok(())
    }
}

/// Where a slot lies: `(page * kv heads) * page tokens + place in the page`.
fn place_of(slot: u32, kv_heads: usize, page_tokens: usize) -> u32 {
    let slot = slot as usize;
    (slot / page_tokens * kv_heads * page_tokens + slot % page_tokens) as u32
}
