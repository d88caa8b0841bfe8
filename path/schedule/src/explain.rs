//! Why a placement is what it is, in sentences.

use hypic_domain::flow::Reason;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Millis;

use crate::lanes::{Choice, Lanes};
use crate::plan::Plan;
use crate::problem::{Problem, Segment};

/// Reasons of the best plan, the first of `plans`, with its `choices`: for the combine agent, then for each
/// segment in order.
pub(crate) fn explain(problem: &Problem, plans: &[Plan<'_>], choices: &[Option<Choice>]) -> Vec<Reason> {
    let Some(best) = plans.first() else { return Vec::new() };
    let segments = choices.iter().enumerate().filter_map(|(piece, choice)| {
        let segment = problem.pieces[piece].segment.as_ref()?;
        let (text, cost) = why(&best.lanes, piece, segment, (*choice)?);
        Some(Reason { piece: Some(piece), text, cost: Millis(cost) })
    });
    let combine =
        Reason { piece: None, text: why_combine(problem, plans, choices), cost: Millis(best.completion) };
    std::iter::once(combine).chain(segments).collect()
}

fn why_combine(problem: &Problem, plans: &[Plan<'_>], choices: &[Option<Choice>]) -> String {
    let best = &plans[0];
    let count = |kind: fn(&Choice) -> bool| choices.iter().flatten().filter(|choice| kind(choice)).count();
    let segments = problem.pieces.iter().filter(|piece| piece.segment.is_some()).count();
    let mut text = format!(
        "ready in {:.1} ms with {} ms queued before it",
        best.completion,
        round(best.lanes.combine().ahead.0),
    );
    if best.snapshot.0 > 0 {
        text += &format!("; starts from a snapshot of {} tokens", best.snapshot.0);
    }
    if segments > 0 {
        text += &format!(
            "; of {segments} segments {} are there, {} move, {} are built by workers and {} here",
            count(|choice| matches!(choice, Choice::Local(_))),
            count(|choice| matches!(choice, Choice::Fetch | Choice::Await)),
            count(|choice| matches!(choice, Choice::Build(_))),
            count(|choice| matches!(choice, Choice::Here)),
        );
    }
    match plans.get(1) {
        Some(next) => {
            text + &format!("; next best \"{}\" in {:.1} ms", next.lanes.combine().id, next.completion)
        }
        None => text + "; nobody else composes",
    }
}

/// The sentence for one segment, and what its choice costs by itself.
fn why(lanes: &Lanes<'_>, piece: usize, segment: &Segment, choice: Choice) -> (String, f64) {
    let build = lanes.build_ms(piece);
    match choice {
        Choice::Repeat(earlier) => (format!("the same segment as piece {earlier}"), 0.0),
        Choice::Local(tier) => {
            let bytes = lanes.local(segment).map_or(segment.bytes, |holder| holder.bytes);
            let load = lanes.combine().load_ms(tier, bytes);
            (format!("here already, in {}", tier.name()), load)
        }
        Choice::Fetch => match lanes.senders(segment).first() {
            Some((agent, ms)) => {
                (format!("\"{}\" has it: {ms:.1} ms to move against {build:.1} ms to build", agent.id), *ms)
            }
            None => ("somebody has it".to_owned(), lanes.combine().link.ms(segment.bytes)),
        },
        Choice::Await => {
            let builder = segment.building.as_ref().map_or("another agent", |agent| agent.as_str());
            (format!("\"{builder}\" builds it already"), lanes.combine().link.ms(segment.bytes))
        }
        Choice::Build(worker) => {
            let worker = lanes.workers()[worker];
            let ms = lanes.move_ms(worker, Tier::Device, segment.bytes);
            let text = format!(
                "cold, built by \"{}\": {ms:.1} ms to move against {build:.1} ms to build here",
                worker.id
            );
            (text, ms)
        }
        Choice::Here => (why_here(lanes, segment, build), build),
    }
}

fn why_here(lanes: &Lanes<'_>, segment: &Segment, build: f64) -> String {
    if let Some(holder) = lanes.local(segment) {
        let load = lanes.combine().load_ms(holder.tier, holder.bytes);
        return format!(
            "built here in {build:.1} ms although it lies in {}: {load:.1} ms to load",
            holder.tier.name()
        );
    }
    if let Some((agent, ms)) = lanes.senders(segment).first() {
        return format!(
            "built here in {build:.1} ms although \"{}\" has it: moving does not pay, {ms:.1} ms",
            agent.id
        );
    }
    let quickest = lanes
        .workers()
        .iter()
        .map(|worker| (lanes.move_ms(worker, Tier::Device, segment.bytes), worker))
        .min_by(|(a, _), (b, _)| a.total_cmp(b));
    match quickest {
        None => format!("cold, built here in {build:.1} ms: there is no scatter worker"),
        Some((_, worker)) if lanes.scatter_pays(worker, segment, build) => {
            format!("cold, built here in {build:.1} ms: no worker would have it earlier")
        }
        Some((ms, _)) => {
            format!("cold, built here in {build:.1} ms: scatter does not pay, {ms:.1} ms to move")
        }
    }
}

/// Whole milliseconds without a sign on zero.
fn round(ms: f64) -> u64 {
    ms.max(0.0).round() as u64
}
