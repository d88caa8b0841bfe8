//! Segments onto lanes: longest first, then moves and swaps while they help.

use crate::lanes::{Choice, Lanes};

/// Passes of improvement; each accepted step lowers the completion, so that few are ever needed.
const PASSES: usize = 32;
/// Above this many free segments the longest-first rule alone is near the optimum, and swaps cost their
/// square.
const SWAPPED: usize = 96;
/// Gains under this share are rounding.
const EPSILON: f64 = 1e-9;

/// Choices for the pieces from `first` on; `None` for pieces without a segment. `lanes` hold them.
pub(crate) fn assign(lanes: &mut Lanes<'_>, first: usize, pieces: usize) -> Vec<Option<Choice>> {
    let mut choices = vec![None; pieces];
    let mut free: Vec<(usize, Vec<Choice>)> = Vec::new();
    for piece in first..pieces {
        let options = lanes.options(piece);
        match options[..] {
            [] => {}
            [only] => {
                lanes.add(piece, only);
                choices[piece] = Some(only);
            }
            _ => free.push((piece, options)),
        }
    }
    let alone = alone(lanes.clone(), &free);

    // Longest first. A stable sort: equals stay in prompt order.
    free.sort_by(|(a, _), (b, _)| lanes.build_ms(*b).total_cmp(&lanes.build_ms(*a)));
    let mut chosen: Vec<Choice> = Vec::with_capacity(free.len());
    for (piece, options) in &free {
        let choice = earliest(lanes, *piece, options);
        lanes.add(*piece, choice);
        chosen.push(choice);
    }
    improve(lanes, &free, &mut chosen);
    if alone <= lanes.completion() * (1.0 + EPSILON) {
        // Nobody else could make it earlier: leave them alone.
        for ((piece, options), choice) in free.iter().zip(&mut chosen) {
            lanes.remove(*piece, *choice);
            *choice = without_others(options);
            lanes.add(*piece, *choice);
        }
    }
    for ((piece, _), choice) in free.iter().zip(chosen) {
        choices[*piece] = Some(choice);
    }
    choices
}

/// The option after which the prompt is ready first; among those, what is there before what is to be built;
/// among those, the one whose own lanes are done first.
fn earliest(lanes: &mut Lanes<'_>, piece: usize, options: &[Choice]) -> Choice {
    let mut best: Option<((f64, bool, f64), Choice)> = None;
    for &choice in options {
        lanes.add(piece, choice);
        let built = matches!(choice, Choice::Build(_) | Choice::Here);
        let cost = (lanes.completion(), built, lanes.finish(choice));
        lanes.remove(piece, choice);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, choice));
        }
    }
    best.map_or(Choice::Here, |(_, choice)| choice)
}

/// Completion when the combine agent builds every cold segment itself.
fn alone(mut lanes: Lanes<'_>, free: &[(usize, Vec<Choice>)]) -> f64 {
    for (piece, options) in free {
        lanes.add(*piece, without_others(options));
    }
    lanes.completion()
}

/// What is there is used; what is cold is built by the combine agent.
fn without_others(options: &[Choice]) -> Choice {
    let there = options.iter().find(|choice| matches!(choice, Choice::Local(_) | Choice::Fetch));
    *there.unwrap_or(&Choice::Here)
}

/// Moves one segment, or swaps two, as long as the prompt is ready earlier by it.
fn improve(lanes: &mut Lanes<'_>, free: &[(usize, Vec<Choice>)], chosen: &mut [Choice]) {
    for _ in 0..PASSES {
        let swapped = free.len() <= SWAPPED && swap_pass(lanes, free, chosen);
        if !(move_pass(lanes, free, chosen) || swapped) {
            return;
        }
    }
}

fn move_pass(lanes: &mut Lanes<'_>, free: &[(usize, Vec<Choice>)], chosen: &mut [Choice]) -> bool {
    let before = lanes.completion();
    for ((piece, options), choice) in free.iter().zip(chosen) {
        lanes.remove(*piece, *choice);
        let better = earliest(lanes, *piece, options);
        let now = lanes.completion_with(*piece, *choice);
        if lanes.completion_with(*piece, better) < now * (1.0 - EPSILON) {
            *choice = better;
        }
        lanes.add(*piece, *choice);
    }
    lanes.completion() < before * (1.0 - EPSILON)
}

fn swap_pass(lanes: &mut Lanes<'_>, free: &[(usize, Vec<Choice>)], chosen: &mut [Choice]) -> bool {
    let before = lanes.completion();
    for one in 0..free.len() {
        for two in one + 1..free.len() {
            let ((a, a_options), (b, b_options)) = (&free[one], &free[two]);
            let (x, y) = (chosen[one], chosen[two]);
            if x == y || !a_options.contains(&y) || !b_options.contains(&x) {
                continue;
            }
            let now = lanes.completion();
            lanes.remove(*a, x);
            lanes.remove(*b, y);
            lanes.add(*a, y);
            lanes.add(*b, x);
            if lanes.completion() < now * (1.0 - EPSILON) {
                (chosen[one], chosen[two]) = (y, x);
            } else {
                lanes.remove(*a, y);
                lanes.remove(*b, x);
                lanes.add(*a, x);
                lanes.add(*b, y);
            }
        }
    }
    lanes.completion() < before * (1.0 - EPSILON)
}
