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
/// Below this, partial sums cost more than an idle multiprocessor.
const LEAST_TOKENS_PER_JOB: usize = 256;

/// Tokens of an attention job, where all jobs together attend over `work` tokens.
pub(crate) fn tokens_per_job(work: usize, multiprocessors: usize) -> usize {
    let jobs = (JOBS_PER_MULTIPROCESSOR * multiprocessors).max(1);
    (work / jobs).max(LEAST_TOKENS_PER_JOB).next_multiple_of(64)
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
    fn attention_jobs_fill_the_device_but_are_not_tiny() {
        assert_eq!(tokens_per_job(132 * 4 * 1000, 132), 1024);
        assert_eq!(tokens_per_job(1000, 132), 256);
        assert_eq!(attention_form(Some((8, 0))), AttentionForm::Portable);
        assert_eq!(attention_form(Some((9, 0))), AttentionForm::Hopper);
    }
}
