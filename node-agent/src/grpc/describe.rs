//! What an agent says of itself.

use hypic_domain::model::{LayerSpec, ModelSpec};
use hypic_domain::unit::{Millis, Tokens};
use hypic_wire::convert::{to_json, to_name};
use hypic_wire::proto;
use hypic_wire::status::Refusal;

use crate::agent::Agent;
use crate::engine::{Calibration, SEGMENT_TOKENS};

/// Speed of the bulk transport that routers reckon with: an assumption (docs/gaps.md), 1 GB/s.
const LINK_BYTES_PER_MS: f64 = 1e6;
/// Time before its first byte, assumed as well.
const LINK_FIXED_MS: f64 = 1.0;

/// The answer to [`proto::DescribeRequest`].
///
/// # Errors
/// What cannot be written as JSON.
pub(super) fn describe(agent: &Agent) -> Result<proto::DescribeResponse, Refusal> {
    let load = agent.engine.load();
    let measured = &agent.engine.calibration();
    Ok(proto::DescribeResponse {
        epoch: agent.membership.epoch().0,
        agent: agent.membership.me.0.clone(),
        incarnation: agent.membership.incarnation.0,
        role: proto::AgentRole::from(agent.role).into(),
        identity: agent.identity.0.to_vec(),
        model_spec: to_json("model_spec", agent.engine.spec())?,
        model_file: to_json("model_file", &agent.model)?,
        ready: agent.ready().is_ok(),
        load: Some(proto::Load {
            rows_ahead: load.rows_ahead,
            running: load.running as u32,
            queued: load.queued as u32,
            slots_free: load.slots_free as u32,
            slots_total: load.slots_total as u32,
            pages_free: load.pages_free as u64,
            pages_total: load.pages_total as u64,
            builds: load.builds as u32,
        }),
        calibration: Some(calibration(measured)),
        live_share: load.live_share().unwrap_or(1.0),
        build_tokens_per_second: measured.build_tokens_per_second,
        index_partial: agent.index.counts().partial as u32,
        model: Some(model_facts(agent, measured)?),
        index_whole: agent.index.admitted().is_ok(),
    })
}

fn calibration(measured: &Calibration) -> proto::Calibration {
    let points = |points: &[(Tokens, Millis)]| {
        points.iter().map(|(rows, ms)| proto::CurvePoint { rows: rows.0, ms: ms.0 }).collect()
    };
    proto::Calibration {
        prefill: points(&measured.prefill),
        decode: points(&measured.decode),
        link_bytes_per_ms: LINK_BYTES_PER_MS,
        link_fixed_ms: LINK_FIXED_MS,
    }
}

fn model_facts(agent: &Agent, measured: &Calibration) -> Result<proto::ModelFacts, Refusal> {
    let spec: &ModelSpec = agent.engine.spec();
    let linear = spec.layers.iter().filter_map(|layer| match layer {
        LayerSpec::Linear(shape) => Some(shape.family),
        LayerSpec::Full(_) => None,
    });
    let family = linear.clone().next().map(|family| to_name("family", &family)).transpose()?;
    let body = Tokens(SEGMENT_TOKENS.saturating_sub(agent.model.seam.0));
    Ok(proto::ModelFacts {
        family: family.unwrap_or_default(),
        layers: spec.layers.len() as u32,
        linear_layers: linear.count() as u32,
        identity: agent.identity.to_string(),
        weights_digest: blake3::Hash::from_bytes(agent.weights).to_hex().to_string(),
        bytes_per_segment: spec.tuple_bytes(body, measured.live_share, &agent.model.format).0,
        live_head_percent: (measured.live_share * 100.0).round() as u32,
        device: agent.device.to_owned(),
    })
}
