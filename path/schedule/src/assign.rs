//! Segments onto lanes: longest first, then moves and swaps while they help.

use crate::lanes::{Choice, Lanes};

/// Passes of improvement; gains beyond are under a percent.
const PASSES: usize = 4;
/// Above this many free segments the longest-first rule alone is near the optimum, and swaps cost their
/// square.
const SWAPPED: usize = 96;
/// Gains under this share are rounding.
const EPSILON: f64 = 1e-9;

/// Which segment is in which lane.
pub(crate) struct Assignment {
    /// Segments without a choice: place in the prompt, and what becomes of it.
    fixed: Vec<(usize, Choice)>,
    /// Cold segments that a worker could build, longest first.
    free: Vec<(usize, Vec<Choice>)>,
    /// Beside `free`.
    chosen: Vec<Choice>,
}

/// Puts the segments from piece `first` on into `lanes`: what has no choice first, then longest first; or all
/// cold ones onto the combine agent, if the prompt is ready as early that way.
pub(crate) fn assign(lanes: &mut Lanes<'_>, first: usize, pieces: usize) -> Assignment {
    let mut fixed = Vec::new();
    let mut free: Vec<(usize, Vec<Choice>)> = Vec::new();
    for piece in first..pieces {
        let options = lanes.options(piece);
        match options[..] {
            [] => {}
            [only] => {
                lanes.add(piece, only);
                fixed.push((piece, only));
            }
            _ => free.push((piece, options)),
        }
    }
    // A stable sort: equals stay in prompt order.
    free.sort_by(|(a, _), (b, _)| lanes.build_ms(*b).total_cmp(&lanes.build_ms(*a)));

    let mut alone = lanes.clone();
    for (piece, _) in &free {
        alone.add(*piece, Choice::Here);
    }
    let mut chosen: Vec<Choice> = Vec::with_capacity(free.len());
    for (piece, options) in &free {
        let choice = earliest(lanes, *piece, options);
        lanes.add(*piece, choice);
        chosen.push(choice);
    }
    if alone.completion() <= lanes.completion() * (1.0 + EPSILON) {
        // Nobody else would make it earlier: leave them alone.
        chosen.fill(Choice::Here);
        *lanes = alone;
    }
    Assignment { fixed, free, chosen }
}

impl Assignment {
    /// Beside each of `pieces` pieces; `None` for those without a segment or under the snapshot.
    pub(crate) fn choices(&self, pieces: usize) -> Vec<Option<Choice>> {
        let mut choices = vec![None; pieces];
        let free = self.free.iter().zip(&self.chosen).map(|((piece, _), choice)| (*piece, *choice));
        for (piece, choice) in self.fixed.iter().copied().chain(free) {
            choices[piece] = Some(choice);
        }
        choices
    }

    /// Moves a segment of the last lane, or swaps it with another, as long as the prompt is ready earlier by
    /// it. `lanes` are those that hold the assignment.
    pub(crate) fn improve(&mut self, lanes: &mut Lanes<'_>) {
        let (free, chosen) = (&self.free, &mut self.chosen);
        for _ in 0..PASSES {
            let before = lanes.completion();
            for one in 0..free.len() {
                if lanes.finish(chosen[one]) < lanes.completion() * (1.0 - EPSILON) {
                    continue;
                }
                let moved = try_move(lanes, &free[one], &mut chosen[one]);
                if !moved && free.len() <= SWAPPED {
                    try_swaps(lanes, free, chosen, one);
                }
            }
            if lanes.completion() >= before * (1.0 - EPSILON) {
                return;
            }
        }
    }
}

/// The option after which the prompt is ready first; among those, the one whose own lane is done first.
fn earliest(lanes: &mut Lanes<'_>, piece: usize, options: &[Choice]) -> Choice {
    let before = lanes.completion();
    let mut best: Option<((f64, f64), Choice)> = None;
    for &choice in options {
        lanes.add(piece, choice);
        // Only the lanes of the choice got later.
        let finish = lanes.finish(choice);
        lanes.remove(piece, choice);
        let cost = (before.max(finish), finish);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, choice));
        }
    }
    best.map_or(Choice::Here, |(_, choice)| choice)
}

fn try_move(lanes: &mut Lanes<'_>, (piece, options): &(usize, Vec<Choice>), choice: &mut Choice) -> bool {
    let now = lanes.completion();
    lanes.remove(*piece, *choice);
    let better = earliest(lanes, *piece, options);
    lanes.add(*piece, better);
    if lanes.completion() < now * (1.0 - EPSILON) {
        *choice = better;
        return true;
    }
    lanes.remove(*piece, better);
    lanes.add(*piece, *choice);
    false
}

fn try_swaps(lanes: &mut Lanes<'_>, free: &[(usize, Vec<Choice>)], chosen: &mut [Choice], one: usize) {
    let now = lanes.completion();
    for two in 0..free.len() {
        let ((a, a_options), (b, b_options)) = (&free[one], &free[two]);
        let (x, y) = (chosen[one], chosen[two]);
        if x == y || lanes.same_size(*a, *b) || !a_options.contains(&y) || !b_options.contains(&x) {
            continue;
        }
        lanes.remove(*a, x);
        lanes.remove(*b, y);
        lanes.add(*a, y);
        lanes.add(*b, x);
        if lanes.completion() < now * (1.0 - EPSILON) {
            (chosen[one], chosen[two]) = (y, x);
            return;
        }
        lanes.remove(*a, y);
        lanes.remove(*b, x);
        lanes.add(*a, x);
        lanes.add(*b, y);
    }
}
