//! Station schedule, the router's side: the fleet view in the solver's words.

use hypic_domain::flow::{LocatedRequest, Placement};
use hypic_domain::id::AgentId;
use hypic_domain::serving::ModelFile;
use hypic_domain::unit::{Millis, Tokens};
use hypic_schedule::{AgentView, Curve, FleetView, Link, Problem, TupleSize, solve};

use crate::fleet_view::{AgentSeen, Snapshot};
use crate::refusal::Refusal;

/// GB/s out of each tier, nearest first, and between agents that have not measured their link: orders of
/// magnitude of ordinary machines.
const TIER_SPEEDS: [f64; 4] = [100.0, 10.0, 1.0, 0.1];
const LINK_SPEED: f64 = 1.0;
/// 1 GB/s in bytes per millisecond.
const GB_PER_SECOND: f64 = 1e6;
/// Before an agent has measured itself: milliseconds per batch and per token.
const FIXED: Millis = Millis(5.0);
const PER_TOKEN: Millis = Millis(0.5);

/// Places a request on the agents that can be used now, `excluded` ones left out.
///
/// # Errors
/// [`Refusal::FindAgent`] when nobody can compose.
pub fn schedule(
    located: &LocatedRequest,
    snapshot: &Snapshot,
    model: &ModelFile,
    excluded: &[AgentId],
) -> Result<Placement, Refusal> {
    let usable: Vec<&AgentSeen> =
        snapshot.usable().filter(|agent| !excluded.contains(&agent.entry.id)).collect();
    let Some(first) = usable.first() else { return Err(Refusal::FindAgent) };
    let spec = first.seen.spec.clone();
    let live = usable.iter().map(|agent| agent.seen.live_share).sum::<f64>() / usable.len() as f64;
    let fleet = FleetView {
        agents: usable.into_iter().map(view).collect(),
        seam: model.seam,
        layers: u32::try_from(spec.layers.len()).unwrap_or(u32::MAX),
        tuple: TupleSize::of(&spec, live, &model.format),
    };
    let placement = Problem::new(located, &fleet).and_then(|problem| solve(&problem));
    placement.map_err(|error| match error {
        hypic_schedule::Error::ChooseCombine { .. } => Refusal::FindAgent,
        error => {
            tracing::error!(%error, "a request could not be placed");
            Refusal::Internal
        }
    })
}

fn view(agent: &AgentSeen) -> AgentView {
    let curve = curve(&agent.seen.prefill);
    let ahead = Millis(curve.ms(agent.seen.rows_ahead));
    let measured = agent.seen.link_bytes_per_ms / GB_PER_SECOND;
    let speed = if measured.is_finite() && measured > 0.0 { measured } else { LINK_SPEED };
    AgentView {
        id: agent.entry.id.clone(),
        role: agent.entry.role,
        curve,
        link: Link::of_speed(Millis(agent.seen.link_fixed.0.max(0.0)), speed),
        tiers: TIER_SPEEDS.map(|speed| Link::of_speed(Millis(0.0), speed)),
        ahead,
    }
}

/// An agent's measured points, made to rise: noise may have measured a larger batch as faster.
fn curve(points: &[(u32, f64)]) -> Curve {
    let mut highest = 0.0;
    let mut rising: Vec<(Tokens, Millis)> = Vec::new();
    for (rows, ms) in points {
        highest = f64::max(highest, *ms);
        let later = rising.last().is_none_or(|(before, _)| before.0 < *rows);
        if later && highest.is_finite() {
            rising.push((Tokens(*rows), Millis(highest)));
        }
    }
    Curve::new(rising)
        .or_else(|_| Curve::affine(FIXED, PER_TOKEN))
        .expect("the constants are finite and not negative")
}
