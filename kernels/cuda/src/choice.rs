//! Which form of a kernel runs: pure functions of shape, format and device.

use crate::view::{Family, Shape};

/// The forms of compose + seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComposeForm {
    /// Plain loops, for everything.
    Plain,
    /// Tensor cores and bulk copies of sm_90a: gated delta rule, width 128, at most eight rows between two
    /// tuples.
    Hopper,
}

/// Rows of one step that the Hopper form takes.
pub(crate) const HOPPER_ROWS: usize = 8;

/// The form of compose + seam for steps of at most `most_rows` rows that all have a body.
pub fn compose_form(
    family: Family,
    shape: Shape,
    most_rows: usize,
    bodies_everywhere: bool,
    capability: Option<(i32, i32)>,
) -> ComposeForm {
    let gated_delta = matches!(family, Family::Gdn | Family::DeltaNet);
    let fits = gated_delta && shape.width == 128 && most_rows <= HOPPER_ROWS && bodies_everywhere;
    if fits && capability == Some((9, 0)) { ComposeForm::Hopper } else { ComposeForm::Plain }
}

/// The forms of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionForm {
    /// `mma.sync`, for every device.
    Portable,
    /// wgmma, for sm_90a.
    Hopper,
    /// The same over keys and values that are gathered and rotated first, for many rows.
    Gathered,
    /// Plain loops, for fp32.
    Plain,
}

/// The form of attention of bf16 on a device of this compute capability.
pub fn attention_form(capability: Option<(i32, i32)>) -> AttentionForm {
    if capability == Some((9, 0)) { AttentionForm::Hopper } else { AttentionForm::Portable }
}

/// Times that a token is read by tiles of rows, on average, from which it pays to gather all tokens first.
const GATHERED_READS: usize = 4;

/// Whether attention gathers `tokens` first, of which tiles of rows read `reads` in all.
pub(crate) fn gathers(reads: usize, tokens: usize) -> bool {
    reads >= GATHERED_READS * tokens.max(1)
}

/// The forms of the products of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsForm {
    /// `mma.sync` in tiles of 64 rows, for every device; plain loops for fp32.
    Portable,
    /// wgmma in tiles of 128 rows, for bf16 on sm_90a.
    Hopper,
}

/// Rows of an expert, on average, from which tiles of 128 pay.
const HOPPER_EXPERT_ROWS: usize = 32;

/// The form of the products of `experts` experts with `assignments` rows in all.
pub fn experts_form(assignments: usize, experts: usize, capability: Option<(i32, i32)>) -> ExpertsForm {
    let many = assignments >= HOPPER_EXPERT_ROWS * experts;
    if many && capability == Some((9, 0)) { ExpertsForm::Hopper } else { ExpertsForm::Portable }
}

/// Below this, what pieces of a sequence cost more (their `T`) is not less than what they save.
const LEAST_ROWS_PER_PIECE: usize = 512;

/// Into how many pieces a sequence is cut that is prefilled by itself in chunks of 64: one block for each piece and head.
pub(crate) fn gdn_pieces(rows: usize, heads: usize, multiprocessors: usize) -> usize {
    (multiprocessors / heads.max(1)).min(rows / LEAST_ROWS_PER_PIECE).max(1)
}

/// Jobs for each multiprocessor: enough that the last ones to end leave little of the device idle.
const JOBS_PER_MULTIPROCESSOR: usize = 4;
/// Below this, partial sums cost more than the end of a few jobs leaves idle, where there is one for each multiprocessor.
const USUAL_TOKENS_PER_JOB: usize = 256;
/// A tile: what a job has at least.
const LEAST_TOKENS_PER_JOB: usize = 64;

/// Tokens of an attention job, where all jobs together attend over `work` tokens.
pub(crate) fn tokens_per_job(work: usize, multiprocessors: usize) -> usize {
    let jobs = (JOBS_PER_MULTIPROCESSOR * multiprocessors).max(1);
    let least = (work / multiprocessors.max(1)).clamp(LEAST_TOKENS_PER_JOB, USUAL_TOKENS_PER_JOB);
    (work / jobs).max(least).next_multiple_of(LEAST_TOKENS_PER_JOB)
}

/// Rows up to which a product streams its weight for eight rows at a time, and the library is slower.
const FEW_ROWS: usize = 8;
/// The same for codes, of which the library needs the values, for each use: five bytes of traffic for one of codes.
const FEW_ROWS_OF_CODES: usize = 32;
/// Rows up to which experts take few rows each.
pub const FEW_ROWS_OF_EXPERTS: usize = 128;
/// Rows of an expert, on average, up to which its weights stream.
const FEW_ROWS_EACH: usize = 4;

/// Outputs up to which a product is so small that several of them in one launch are faster than the library, and rows.
const FEW_OUTPUTS: usize = 64;
const FEW_ROWS_OF_FEW_OUTPUTS: usize = 128;

/// Whether a product of `rows` rows in bf16 with `outer` sums of `inner` terms, of codes or not, takes the form for few rows.
pub(crate) fn is_few_product(rows: usize, inner: usize, outer: usize, is_coded: bool) -> bool {
    let most = match is_coded {
        _ if outer <= FEW_OUTPUTS => FEW_ROWS_OF_FEW_OUTPUTS,
        true => FEW_ROWS_OF_CODES,
        false => FEW_ROWS,
    };
    rows <= most && inner > 0 && inner.is_multiple_of(32)
}

/// Whether a mixture over `rows` rows in bf16 takes the form for few rows: `top` of `experts` for each, all widths of
/// `widths` in whole chunks.
pub(crate) fn is_few_experts(rows: usize, top: usize, experts: usize, widths: &[usize]) -> bool {
    let are_whole = widths.iter().all(|width| *width > 0 && width.is_multiple_of(32));
    rows <= FEW_ROWS_OF_EXPERTS && rows * top <= FEW_ROWS_EACH * experts && are_whole
}

/// Rows up to which launches of decode that move next to nothing ride in those beside them: below it a launch costs more than
/// what blocks then do in vain.
const FUSED_ROWS: usize = 8;
/// Experts of a row of which every block keeps a list: a size of device/experts_few.cu.
const MOST_CHOSEN: usize = 256;

/// Whether blocks choose the `top` experts of `rows` rows by themselves: of one row they all run at once, and do it but once.
pub(crate) fn chooses_in_place(rows: usize, top: usize) -> bool {
    rows == 1 && top <= MOST_CHOSEN
}

/// Whether norms and gates of `rows` rows are made in the launches before or behind them.
pub(crate) fn norms_in_place(rows: usize) -> bool {
    rows <= FUSED_ROWS
}

/// Experts of a row, the shared one among them, whose downs a block adds up: a size of device/experts_few.cu.
const SUMMED_EXPERTS: usize = 16;

/// Whether the downs of `rows` rows, of `top` experts and perhaps a shared one at most `wide` wide, are added up where they are
/// made: of one row, by blocks in which a warp has an expert's whole sum.
pub(crate) fn sums_in_place(rows: usize, top: usize, wide: usize) -> bool {
    rows == 1 && top < SUMMED_EXPERTS && shares_of(wide).split == 1
}

/// Rows up to which the recurrence of a step has one block for a head, which norms it: of 32 heads these run at once.
const WHOLE_HEAD_ROWS: usize = 4;

/// Whether the recurrence of a step of `rows` rows norms its outputs by itself.
pub(crate) fn norms_in_step(rows: usize) -> bool {
    rows <= WHOLE_HEAD_ROWS
}

/// Rows that every block of a product norms by itself, and their widest: they lie in shared memory.
const NORMED_ROWS: usize = 2;
const NORMED_WIDTH: usize = 8192;
/// Rows up to this wide take a warp each where they are normed by themselves: a size of device/norm.cuh.
const NARROW_NORM: usize = 256;

/// Whether the norm of a sum of rows is made by every block of the product that reads it.
pub(crate) fn adds_in_place(rows: usize, width: usize) -> bool {
    rows <= NORMED_ROWS && width <= NORMED_WIDTH
}

/// The same of the norm of rows: narrow ones are added up in another order.
pub(crate) fn norms_in_product(rows: usize, width: usize) -> bool {
    adds_in_place(rows, width) && width > NARROW_NORM
}

/// Logits of a part of a row, of which a block finds the largest.
const LEAST_LOGITS: usize = 4096;

/// Logits of each part of a row of `width`, of which the `most` largest are asked for.
pub(crate) fn part_of_logits(width: usize, most: usize) -> usize {
    LEAST_LOGITS.max(most).min(width)
}

/// How warps share a product of few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Warps among which the inner axis is shared out.
    pub(crate) split: usize,
    /// Tiles of outputs of a block.
    pub(crate) tiles: usize,
}

/// Terms of a sum that one warp takes: enough to be worth its start, few enough that all multiprocessors have some.
const TERMS_PER_WARP: usize = 512;
const LEAST_WARPS: usize = 4;

/// Warps of a multiprocessor up to which each asks for all that it will ever read at once.
const DEEP_WARPS: usize = 8;
/// Blocks of four warps with few registers that a multiprocessor holds: sizes of device/experts_few.cu.
const WIDE_BLOCKS: usize = 5;
const WIDE_THREADS: usize = 128;

/// Whether a product of `warps` warps is one of few. Bits do not depend on it, nor on the one below.
pub(crate) fn reads_deep(warps: usize, multiprocessors: usize) -> bool {
    warps <= DEEP_WARPS * multiprocessors
}

/// Whether so many blocks of so many threads fit the device at once if they take fewer registers.
pub(crate) fn is_wide(blocks: usize, threads: usize, multiprocessors: usize) -> bool {
    threads <= WIDE_THREADS && blocks <= WIDE_BLOCKS * multiprocessors
}

/// How warps share sums of `inner` terms: never by the number of rows, so that a row's bits do not depend on it.
pub(crate) fn shares_of(inner: usize) -> Shares {
    let split = inner.div_ceil(TERMS_PER_WARP).next_power_of_two().min(8);
    Shares { split, tiles: (LEAST_WARPS / split).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { heads: 32, key_heads: 16, width: 128 };

    #[test]
    fn a_hopper_device_gets_the_hopper_form() {
        assert_eq!(compose_form(Family::Gdn, SHAPE, 8, true, Some((9, 0))), ComposeForm::Hopper);
    }

    #[test]
    fn everything_else_gets_the_plain_form() {
        let narrow = Shape { width: 64, ..SHAPE };
        for (family, shape, rows, bodies, capability) in [
            (Family::Gdn, SHAPE, 8, true, None),
            (Family::Gdn, SHAPE, 8, true, Some((8, 0))),
            (Family::Gdn, SHAPE, 9, true, Some((9, 0))),
            (Family::Gdn, SHAPE, 8, false, Some((9, 0))),
            (Family::Gdn, narrow, 8, true, Some((9, 0))),
            (Family::Kda, SHAPE, 8, true, Some((9, 0))),
        ] {
            assert_eq!(compose_form(family, shape, rows, bodies, capability), ComposeForm::Plain);
        }
    }

    #[test]
    fn many_rows_for_each_expert_get_the_hopper_form() {
        assert_eq!(experts_form(256 * 32, 256, Some((9, 0))), ExpertsForm::Hopper);
        assert_eq!(experts_form(256 * 32 - 1, 256, Some((9, 0))), ExpertsForm::Portable);
        assert_eq!(experts_form(256 * 32, 256, Some((8, 0))), ExpertsForm::Portable);
        assert_eq!(experts_form(256 * 32, 256, None), ExpertsForm::Portable);
    }

    #[test]
    fn pieces_fill_the_device_but_are_not_short() {
        assert_eq!(gdn_pieces(32_768, 32, 132), 4);
        assert_eq!(gdn_pieces(1024, 32, 132), 2);
        assert_eq!(gdn_pieces(500, 32, 132), 1);
        assert_eq!(gdn_pieces(32_768, 256, 132), 1);
    }

    #[test]
    fn few_rows_stream_and_blocks_have_four_warps_or_more() {
        assert!(
            is_few_product(8, 2048, 4096, false)
                && !is_few_product(9, 2048, 4096, false)
                && !is_few_product(1, 48, 16, false)
        );
        assert!(is_few_product(32, 2048, 4096, true) && !is_few_product(33, 2048, 4096, true));
        assert!(is_few_product(128, 2048, 64, false) && !is_few_product(129, 2048, 64, false));
        assert!(is_few_experts(128, 8, 256, &[2048, 512]) && !is_few_experts(128, 8, 255, &[2048, 512]));
        assert!(!is_few_experts(129, 1, 256, &[2048]) && !is_few_experts(1, 1, 2, &[2048, 40]));
        assert!(reads_deep(1056, 132) && !reads_deep(1057, 132));
        assert!(is_wide(576, 128, 132) && !is_wide(576, 256, 132) && !is_wide(17 * 64, 128, 132));
        assert!(chooses_in_place(1, 256) && !chooses_in_place(2, 1) && !chooses_in_place(1, 257));
        assert!(adds_in_place(2, 8192) && !adds_in_place(3, 64) && !adds_in_place(1, 8224));
        assert!(norms_in_product(1, 257) && !norms_in_product(1, 256) && !norms_in_product(3, 2048));
        assert!(sums_in_place(1, 15, 512) && !sums_in_place(2, 1, 512));
        assert!(!sums_in_place(1, 16, 512) && !sums_in_place(1, 8, 544));
        assert!(norms_in_step(4) && !norms_in_step(5));
        assert!(norms_in_place(8) && !norms_in_place(9));
        let shares =
            [32, 512, 544, 2048, 4096, 16384].map(shares_of).map(|shares| (shares.split, shares.tiles));
        assert_eq!(shares, [(1, 4), (1, 4), (2, 2), (4, 1), (8, 1), (8, 1)]);
    }

    #[test]
    fn attention_jobs_fill_the_device_but_are_not_tiny() {
        assert_eq!(tokens_per_job(132 * 4 * 1000, 132), 1024);
        assert_eq!(tokens_per_job(132 * 250, 132), 256);
        assert_eq!(tokens_per_job(132 * 100, 132), 128);
        assert_eq!(tokens_per_job(1000, 132), 64);
        assert_eq!(attention_form(Some((8, 0))), AttentionForm::Portable);
        assert_eq!(attention_form(Some((9, 0))), AttentionForm::Hopper);
    }
}
