//! The combine agent, and behind it each segment's source.

use hypic_domain::flow::{Holder, Placement, Source};
use hypic_domain::topology::AgentRole;
use hypic_domain::unit::Tokens;

use crate::Error;
use crate::assign::{Assignment, assign};
use crate::explain::explain;
use crate::fleet::AgentView;
use crate::lanes::{Choice, Lanes};
use crate::problem::Problem;

/// A placement on one combine agent.
pub(crate) struct Plan<'p> {
    pub(crate) lanes: Lanes<'p>,
    /// Tokens that the snapshot covers.
    pub(crate) snapshot: Tokens,
    pub(crate) assignment: Assignment,
    pub(crate) completion: f64,
}

/// The placement after which the prompt is predicted to be ready first.
///
/// # Errors
/// [`Error::ChooseCombine`] if no agent of the problem composes.
pub fn solve(problem: &Problem) -> Result<Placement, Error> {
    let mut plans: Vec<Plan<'_>> = candidates(problem).map(|combine| plan(problem, combine)).collect();
    plans.sort_by(|a, b| {
        let (one, two) = (&a.lanes.combine().id, &b.lanes.combine().id);
        let draw = || (problem.rank(one), one).cmp(&(problem.rank(two), two));
        a.completion.total_cmp(&b.completion).then_with(draw)
    });
    let Some(best) = plans.first_mut() else {
        return Err(Error::ChooseCombine { agents: problem.agents.len() });
    };
    // Longest first alone chooses the agent; only its plan is worth the polish.
    best.assignment.improve(&mut best.lanes);
    best.completion = best.lanes.completion();
    let choices = best.assignment.choices(problem.pieces.len());
    let best = &plans[0];
    let mut sources: Vec<Option<Source>> = Vec::with_capacity(choices.len());
    for (piece, choice) in choices.iter().enumerate() {
        sources.push(match choice {
            Some(Choice::Repeat(earlier)) => sources[*earlier].clone(),
            Some(choice) => source(problem, best, piece, *choice),
            None => None,
        });
    }
    Ok(Placement {
        combine: best.lanes.combine().id.clone(),
        snapshot: best.snapshot,
        sources,
        reasons: explain(problem, &plans, &choices),
    })
}

/// Agents that could compose.
pub(crate) fn candidates(problem: &Problem) -> impl Iterator<Item = &AgentView> {
    problem.agents.iter().filter(|agent| agent.role == AgentRole::Combine)
}

fn plan<'p>(problem: &'p Problem, combine: &'p AgentView) -> Plan<'p> {
    let (mut lanes, first, snapshot) = start(problem, combine);
    let assignment = assign(&mut lanes, first, problem.pieces.len());
    Plan { completion: lanes.completion(), lanes, snapshot, assignment }
}

/// The lanes of one combine agent before anything is chosen, the first piece behind its snapshot, and the
/// snapshot's tokens: the longest that lies there and is loaded faster than its tokens are computed.
pub(crate) fn start<'p>(problem: &'p Problem, combine: &'p AgentView) -> (Lanes<'p>, usize, Tokens) {
    let nearest = |holders: &'p [Holder]| {
        holders.iter().filter(|holder| holder.agent == combine.id).min_by_key(|holder| holder.tier)
    };
    let usable = problem.snapshots.iter().filter_map(|snapshot| {
        let holder = nearest(&snapshot.holders)?;
        let load = combine.load_ms(holder.tier, holder.bytes);
        let first = covered(problem, snapshot.tokens)?;
        (load < combine.curve.ms(u64::from(snapshot.tokens.0))).then_some((snapshot.tokens, first, holder))
    });
    match usable.max_by_key(|(tokens, ..)| *tokens) {
        Some((tokens, first, holder)) => (Lanes::new(problem, combine, first, Some(holder)), first, tokens),
        None => (Lanes::new(problem, combine, 0, None), 0, Tokens(0)),
    }
}

/// Pieces that end at or before `tokens`; `None` where the boundary is not one of pieces.
fn covered(problem: &Problem, tokens: Tokens) -> Option<usize> {
    let mut end = 0;
    for (place, piece) in problem.pieces.iter().enumerate() {
        if end >= tokens.0 {
            return (end == tokens.0).then_some(place);
        }
        end += piece.tokens.0;
    }
    (end == tokens.0).then_some(problem.pieces.len())
}

fn source(problem: &Problem, plan: &Plan<'_>, piece: usize, choice: Choice) -> Option<Source> {
    let segment = problem.pieces[piece].segment.as_ref()?;
    Some(match choice {
        Choice::Repeat(_) => return None,
        Choice::Local(_) => Source::Local,
        Choice::Fetch => {
            let senders = plan.lanes.senders(segment);
            Source::Fetch { holders: senders.into_iter().map(|(agent, _)| agent.id.clone()).collect() }
        }
        Choice::Await => {
            let builder = segment.building.clone()?;
            if plan.lanes.workers().iter().any(|worker| worker.id == builder) {
                Source::Build { worker: builder }
            } else {
                Source::Fetch { holders: vec![builder] }
            }
        }
        Choice::Build(worker) => Source::Build { worker: plan.lanes.workers()[worker].id.clone() },
        Choice::Here => Source::BuildHere,
    })
}
