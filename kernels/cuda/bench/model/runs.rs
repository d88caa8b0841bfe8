//! What several figures run.

use hypic_kernels::op::Device;
use hypic_kernels::plan::{Context, Run, RunOp};

use super::{DECODING, PAGE};

/// So many live tokens, in pages from `first` on.
pub(crate) fn live<D: Device>(first: usize, tokens: usize) -> Context<D> {
    let pages = (first..first + tokens.div_ceil(PAGE)).collect();
    Context { pages, live: (0..tokens as u32).collect(), bodies: Vec::new() }
}

/// The last `rows` of so many live tokens, in slot 0.
pub(crate) fn last_rows<D: Device>(rows: usize, tokens: usize) -> Run<D> {
    Run { rows: 0..rows, slot: 0, context: live(0, tokens), ops: vec![RunOp::Rows(0..rows)], record: None }
}

/// One token of each of `batch` sequences with [`DECODING`] live tokens.
pub(crate) fn decoding<D: Device>(batch: usize) -> Vec<Run<D>> {
    let run = |number: usize| Run {
        rows: number..number + 1,
        slot: number,
        context: live(number * DECODING / PAGE, DECODING),
        ops: vec![RunOp::Rows(number..number + 1)],
        record: None,
    };
    (0..batch).map(run).collect()
}
