//! Asks every agent what it is and how loaded, again and again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hypic_domain::id::Incarnation;
use hypic_domain::model::ModelSpec;
use hypic_domain::topology::AgentEntry;
use hypic_domain::unit::Millis;
use hypic_wire::channel::Channels;
use hypic_wire::proto::{AgentState, Calibration, DescribeRequest, DescribeResponse, Load};
use hypic_wire::status::Refusal as PeerRefusal;
use hypic_wire::{Error as WireError, convert};

use super::{FleetView, Seen};
use crate::metrics::Metrics;

/// Polls for ever. An agent that does not answer within `timeout` counts as lost.
pub async fn run(
    fleet: Arc<FleetView>,
    channels: Arc<Channels>,
    metrics: Arc<Metrics>,
    every: Duration,
    timeout: Duration,
) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        round(&fleet, &channels, timeout).await;
        let snapshot = fleet.snapshot();
        let known = i64::try_from(snapshot.topology.agents.len()).unwrap_or(i64::MAX);
        let usable = i64::try_from(snapshot.usable().count()).unwrap_or(i64::MAX);
        metrics.agents.with_label_values(&["known"]).set(known);
        metrics.agents.with_label_values(&["usable"]).set(usable);
        metrics.epoch.set(i64::try_from(snapshot.topology.epoch.0).unwrap_or(i64::MAX));
    }
}

/// Asks all agents once.
pub async fn round(fleet: &FleetView, channels: &Channels, timeout: Duration) {
    let topology = fleet.snapshot().topology.clone();
    channels.retain(|address| topology.agents.iter().any(|entry| entry.control == address));
    let epoch = topology.epoch.0;
    join_all(topology.agents.iter().map(|entry| async move {
        let answer = tokio::time::timeout(timeout, describe(channels, entry, epoch)).await;
        match answer {
            Ok(Ok(seen)) => fleet.saw(&entry.id, seen),
            // It answers. The topology that it has is on its way here, or came while the question was out.
            Ok(Err(refusal @ PeerRefusal::OldEpoch { .. })) => {
                tracing::debug!(agent = %entry.id, %refusal, "an agent is ahead");
            }
            Ok(Err(refusal)) => {
                tracing::debug!(agent = %entry.id, %refusal, "agent does not describe itself");
                fleet.lost(&entry.id);
            }
            Err(_) => {
                tracing::debug!(agent = %entry.id, "agent does not answer in time");
                fleet.lost(&entry.id);
            }
        }
    }))
    .await;
}

async fn describe(channels: &Channels, entry: &AgentEntry, epoch: u64) -> Result<Seen, PeerRefusal> {
    let mut agent = channels.agent(&entry.control)?;
    let response = agent.describe(DescribeRequest { epoch }).await?.into_inner();
    Ok(from_description(response)?)
}

/// What an agent said, checked.
fn from_description(response: DescribeResponse) -> Result<Seen, WireError> {
    let DescribeResponse {
        incarnation,
        role,
        identity,
        model_spec,
        ready,
        load,
        calibration,
        live_share,
        build_tokens_per_second,
        index_partial,
        model,
        index_whole,
        agent: id,
        epoch: _,
        model_file: _,
    } = response;
    let Load { rows_ahead, running, queued, builds, .. } = load.unwrap_or_default();
    let Calibration { prefill, link_bytes_per_ms, link_fixed_ms, .. } = calibration.unwrap_or_default();
    let spec: ModelSpec = convert::from_json("model_spec", &model_spec)?;
    Ok(Seen {
        incarnation: Incarnation(incarnation),
        identity: convert::identity(&identity)?,
        spec: Arc::new(spec),
        ready,
        rows_ahead,
        prefill: prefill.into_iter().map(|point| (point.rows, point.ms)).collect(),
        link_bytes_per_ms,
        link_fixed: Millis(link_fixed_ms),
        live_share: live_share.clamp(0.0, 1.0),
        index_whole,
        state: AgentState {
            id,
            role,
            usable: ready,
            build_tokens_per_second,
            running,
            queued,
            builds,
            index_partial,
            incarnation,
            model,
        },
    })
}
