//! The optimum by search: the oracle of the tests and of the bench. Exponential; for small problems only.

use hypic_domain::unit::Millis;

use crate::lanes::{Choice, Lanes};
use crate::plan::{candidates, start};
use crate::problem::Problem;

/// The least completion that any choice of combine agent and sources has; `None` without a combine agent.
///
/// Depth first over the pieces, longest first. A partial placement can only get later, so a branch that is
/// no earlier than the best known is cut; of workers that do not differ only one is tried.
pub fn optimum(problem: &Problem) -> Option<Millis> {
    let mut best = f64::INFINITY;
    for combine in candidates(problem) {
        let (mut lanes, first, _) = start(problem, combine);
        let mut pieces: Vec<(usize, Vec<Choice>)> =
            (first..problem.pieces.len()).map(|piece| (piece, lanes.options(piece))).collect();
        pieces.retain(|(_, options)| !options.is_empty());
        pieces.sort_by(|(a, _), (b, _)| lanes.build_ms(*b).total_cmp(&lanes.build_ms(*a)));
        search(&mut lanes, &pieces, &mut best);
    }
    best.is_finite().then_some(Millis(best))
}

fn search(lanes: &mut Lanes<'_>, pieces: &[(usize, Vec<Choice>)], best: &mut f64) {
    let completion = lanes.completion();
    if completion >= *best {
        return;
    }
    let Some(((piece, options), rest)) = pieces.split_first() else {
        *best = completion;
        return;
    };
    for (place, &choice) in options.iter().enumerate() {
        let repeats = options[..place].iter().any(|&tried| match (tried, choice) {
            (Choice::Build(one), Choice::Build(two)) => lanes.alike(one, two),
            _ => false,
        });
        if repeats {
            continue;
        }
        lanes.add(*piece, choice);
        search(lanes, rest, best);
        lanes.remove(*piece, choice);
    }
}
