//! The combine agent of the best plan, and behind it each segment's source.

use hypic_domain::flow::{Placement, Source};

use crate::Error;
use crate::explain::explain;
use crate::lanes::Choice;
use crate::plan::{Plan, candidates, plan};
use crate::problem::Problem;

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
