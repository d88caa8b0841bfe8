//! Asks every router of a fleet what it has counted and how it sees the agents.

use std::collections::BTreeMap;

use futures::future::join_all;
use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::topology::AgentRole;
use hypic_wire::channel::Channels;
use hypic_wire::proto;

use super::{AgentPulse, RouterPod};
use crate::scaling::{Counters, Unreachable, Worker};

/// What came of asking one router.
pub(super) struct Answer {
    /// Its pod's uid.
    pub(super) router: String,
    pub(super) told: Result<Told, Unreachable>,
}

/// What a router told.
pub(super) struct Told {
    pub(super) counters: Counters,
    /// Epoch and revision of its topology.
    pub(super) version: (u64, u64),
    pub(super) agents: Vec<AgentPulse>,
}

/// Asks all of them at once, in their order.
pub(super) async fn ask(channels: &Channels, routers: &[RouterPod]) -> Vec<Answer> {
    join_all(routers.iter().map(async |router| {
        let told = match channels.read_counters(&router.address).await {
            Ok(response) => read(response),
            Err(error) => Err(Unreachable(error.to_string())),
        };
        Answer { router: router.uid.clone(), told }
    }))
    .await
}

fn read(response: proto::ReadCountersResponse) -> Result<Told, Unreachable> {
    let proto::ReadCountersResponse {
        incarnation,
        epoch,
        revision,
        uptime_seconds,
        requests,
        cold_requests,
        segment_tokens,
        cold_tokens,
        cold_first_token_ms_counts,
        queue_age_seconds,
        agents,
    } = response;
    let states = agents.into_iter().map(state).collect::<Result<Vec<_>, _>>()?;
    let (agents, workers) = states.into_iter().unzip();
    let counters = Counters {
        incarnation: Incarnation(incarnation),
        uptime_seconds,
        requests,
        cold_requests,
        segment_tokens,
        cold_tokens,
        cold_first_token_ms_counts,
        queue_age_seconds,
        workers,
    };
    Ok(Told { counters, version: (epoch, revision), agents })
}

fn state(state: proto::AgentState) -> Result<(AgentPulse, Worker), Unreachable> {
    let role = AgentRole::try_from(state.role())
        .map_err(|error| Unreachable(format!("agent '{}' has no role that is known: {error}", state.id)))?;
    let proto::AgentState {
        id,
        role: _,
        usable,
        build_tokens_per_second,
        running,
        queued,
        builds,
        index_partial,
        incarnation: _,
        model,
    } = state;
    let worker = Worker { id: AgentId(id.clone()), role, usable, build_tokens_per_second, builds };
    let agent =
        AgentPulse { id: AgentId(id), role, usable, index_partial, running, queued, builds, facts: model };
    Ok((agent, worker))
}

/// Each agent once, by id: usable if any router can use it, and with the most that any has seen of it.
pub(super) fn merge<'a>(told: impl Iterator<Item = &'a Told>) -> Vec<AgentPulse> {
    let mut merged: BTreeMap<&AgentId, AgentPulse> = BTreeMap::new();
    for agent in told.flat_map(|told| &told.agents) {
        let seen = merged.entry(&agent.id).or_insert_with(|| agent.clone());
        seen.usable |= agent.usable;
        seen.index_partial = seen.index_partial.max(agent.index_partial);
        seen.running = seen.running.max(agent.running);
        seen.queued = seen.queued.max(agent.queued);
        seen.builds = seen.builds.max(agent.builds);
        if seen.facts.is_none() {
            seen.facts.clone_from(&agent.facts);
        }
    }
    merged.into_values().collect()
}
