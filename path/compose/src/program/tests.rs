use hypic_domain::flow::Origin;
use hypic_domain::key::SegmentKey;
use proptest::prelude::*;

use super::*;

fn piece(tokens: usize, first: u32, segment: bool) -> Piece {
    Piece {
        ids: (first..).take(tokens).collect(),
        origin: Origin::Part,
        key: segment.then_some(SegmentKey([first as u8; 32])),
    }
}

/// Lengths into pieces with distinct ids; the flag makes a segment.
fn pieces(shape: &[(usize, bool)]) -> Vec<Piece> {
    let mut first = 0;
    shape
        .iter()
        .map(|&(tokens, segment)| {
            first += tokens as u32;
            piece(tokens, first - tokens as u32, segment)
        })
        .collect()
}

#[test]
fn a_composed_prompt_alternates_seams_and_bodies() {
    let prompt = pieces(&[(5, false), (20, true), (30, true), (4, false)]);
    let program = Program::of_prompt(&prompt, Mode::Pic, 8, Ablation::None).unwrap();
    let apply = |body| Step::Apply { body, rule: Rule::Compose };
    assert_eq!(
        program.steps,
        [Step::Rows(0..13), apply(0), Step::Rows(13..21), apply(1), Step::Rows(21..25)]
    );
    assert_eq!(
        program.bodies,
        [Body { piece: 1, start: 13, len: 12 }, Body { piece: 2, start: 33, len: 22 }]
    );
    assert_eq!(program.positions[12..15], [12, 25, 26]);
    assert_eq!((program.exact_rows(), program.tokens()), (13, 59));
    let counts = program.counts(5, |body| body.piece == 2);
    assert_eq!(counts, PromptCounts { exact: 5, hit: 12, built: 22, seam: 16, live: 4 });
    assert_eq!(counts.total(), 59);
}

#[test]
fn short_segments_and_the_last_piece_stay_live() {
    let prompt = pieces(&[(8, true), (9, true), (40, true), (0, false)]);
    let program = Program::of_prompt(&prompt, Mode::Pic, 8, Ablation::None).unwrap();
    assert_eq!(program.bodies, [Body { piece: 1, start: 16, len: 1 }]);
    assert_eq!(program.rows(), 56);
}

#[test]
fn without_a_seam_a_summary_may_come_first() {
    let prompt = pieces(&[(10, true), (3, false)]);
    let program = Program::of_prompt(&prompt, Mode::Last, 0, Ablation::None).unwrap();
    assert_eq!(program.steps, [Step::Apply { body: 0, rule: Rule::Replace }, Step::Rows(0..3)]);
    let slice = program.slice(0, 2, &[], 7);
    assert_eq!(slice.ops, [RunOp::Apply { body: 0, rule: Rule::Replace }, RunOp::Rows(7..9)]);
    assert_eq!(slice.bodies, 1);
    assert_eq!(program.slice(2, 2, &[], 0).ops, [RunOp::Rows(0..1)]);
}

#[test]
fn modes_without_composition_are_one_run_of_rows() {
    let prompt = pieces(&[(5, false), (20, true), (4, false)]);
    for mode in [Mode::Recompute, Mode::Prefix] {
        let program = Program::of_prompt(&prompt, mode, 8, Ablation::None).unwrap();
        assert_eq!(program.steps, [Step::Rows(0..29)]);
        assert_eq!(program.counts(0, |_| false).live, 29);
    }
}

#[test]
fn a_cold_convolution_is_cut_before_every_piece() {
    let prompt = pieces(&[(5, false), (20, true), (4, false)]);
    let program = Program::of_prompt(&prompt, Mode::Pic, 8, Ablation::ColdConvolution).unwrap();
    let apply = Step::Apply { body: 0, rule: Rule::Compose };
    let (clear, rows) = (Step::ClearTail, Step::Rows);
    assert_eq!(
        program.steps,
        [clear.clone(), rows(0..5), clear.clone(), rows(5..13), apply, clear, rows(13..17)]
    );
}

#[test]
fn a_prompt_without_tokens_is_refused() {
    assert_eq!(
        Program::of_prompt(&pieces(&[(0, false)]), Mode::Pic, 8, Ablation::None),
        Err(ComposeError::ReadPrompt)
    );
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

fn any_ablation() -> impl Strategy<Value = Ablation> {
    prop::sample::select(vec![Ablation::None, Ablation::ColdConvolution])
}

proptest! {
    #[test]
    fn any_slicing_does_every_step_once_and_in_order(
        shape in prop::collection::vec((0usize..30, any::<bool>()), 1..9),
        mode in any_mode(),
        ablation in any_ablation(),
        seam in 0u32..10,
        budgets in prop::collection::vec(1usize..12, 1..5),
        cuts in prop::collection::btree_set(0usize..100, 0..4),
    ) {
        let prompt = pieces(&shape);
        let Ok(program) = Program::of_prompt(&prompt, mode, seam, ablation) else { return Ok(()) };
        let cuts: Vec<usize> = cuts.into_iter().collect();
        let whole = program.slice(0, usize::MAX, &[], 0);
        let (mut from, mut turn, mut ops) = (0, 0, Vec::<RunOp>::new());
        while from < program.rows() {
            let slice = program.slice(from, budgets[turn % budgets.len()], &cuts, from);
            prop_assert_eq!(slice.rows.start, from);
            prop_assert!(slice.rows.end > from);
            prop_assert!(!cuts.iter().any(|cut| slice.rows.start < *cut && *cut < slice.rows.end));
            let end = program.positions[slice.rows.end - 1];
            let behind = program.bodies.iter().filter(|body| body.start <= end).count();
            prop_assert_eq!(slice.bodies, behind);
            for op in slice.ops {
                match (ops.last_mut(), op) {
                    (Some(RunOp::Rows(before)), RunOp::Rows(rows)) => {
                        prop_assert_eq!(before.end, rows.start);
                        before.end = rows.end;
                    }
                    (_, op) => ops.push(op),
                }
            }
            (from, turn) = (slice.rows.end, turn + 1);
        }
        prop_assert_eq!(ops, whole.ops);
    }

    #[test]
    fn rows_and_bodies_are_the_prompt(
        shape in prop::collection::vec((0usize..30, any::<bool>()), 1..9),
        mode in any_mode(),
        seam in 0u32..10,
    ) {
        let prompt = pieces(&shape);
        let Ok(program) = Program::of_prompt(&prompt, mode, seam, Ablation::None) else { return Ok(()) };
        let mut covered: Vec<(u32, u32)> = program.positions.iter().copied().zip(program.ids.clone()).collect();
        covered.extend(program.bodies.iter().flat_map(|body| (body.start..body.start + body.len).map(|p| (p, p))));
        covered.sort_unstable();
        let whole: Vec<u32> = prompt.iter().flat_map(|piece| piece.ids.clone()).collect();
        prop_assert_eq!(covered, whole.iter().map(|id| (*id, *id)).collect::<Vec<_>>());
        prop_assert_eq!(program.counts(0, |body| body.piece % 2 == 0).total() as usize, whole.len());
    }
}
