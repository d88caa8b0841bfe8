//! A placement on one combine agent: its snapshot, and longest first behind it.

use hypic_domain::flow::Holder;
use hypic_domain::topology::AgentRole;
use hypic_domain::unit::Tokens;

use crate::assign::{Assignment, assign};
use crate::fleet::AgentView;
use crate::lanes::Lanes;
use crate::problem::Problem;

/// A placement on one combine agent.
pub(crate) struct Plan<'p> {
    pub(crate) lanes: Lanes<'p>,
    /// Tokens that the snapshot covers.
    pub(crate) snapshot: Tokens,
    pub(crate) assignment: Assignment,
    pub(crate) completion: f64,
}

/// Agents that could compose.
pub(crate) fn candidates(problem: &Problem) -> impl Iterator<Item = &AgentView> {
    problem.agents.iter().filter(|agent| agent.role == AgentRole::Combine)
}

/// Longest first on one combine agent.
pub(crate) fn plan<'p>(problem: &'p Problem, combine: &'p AgentView) -> Plan<'p> {
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
