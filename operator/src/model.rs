//! One pass over one HypicModel: what the agents that serve it found in its checkpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypic_crds::condition::{Finding, Is, conditions, kind};
use hypic_crds::{HypicCluster, HypicModel, HypicModelStatus};
use hypic_wire::proto::ModelFacts;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};

use crate::metrics::Kind;
use crate::reconcile::{Context, ReconcileError, key};
use crate::status;

/// While nobody has loaded it.
const WAITING: Duration = Duration::from_secs(15);
/// Once it is known.
const AT_REST: Duration = Duration::from_secs(300);

/// One pass.
///
/// # Errors
/// The API server.
pub async fn reconcile(model: Arc<HypicModel>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let begun = Instant::now();
    let done = pass(&model, &context).await;
    context.metrics.reconciled(Kind::HypicModel, begun.elapsed().as_secs_f64(), done.is_ok());
    if done.is_ok() {
        context.patience.reset(&model.uid().unwrap_or_default());
    }
    done
}

async fn pass(model: &HypicModel, context: &Context) -> Result<Action, ReconcileError> {
    let namespace = model.namespace().unwrap_or_default();
    let clusters = Api::<HypicCluster>::namespaced(context.client.clone(), &namespace);
    let clusters = clusters.list(&ListParams::default()).await?.items;
    let name = model.name_any();
    let serving: Vec<HypicCluster> = clusters
        .into_iter()
        .filter(|cluster| cluster.spec.node_pools.iter().any(|pool| pool.model_ref == name))
        .collect();
    let facts = serving.iter().find_map(|cluster| {
        context.pulses.get(&key(cluster))?.agents.into_iter().find_map(|agent| agent.facts)
    });
    let status = report(model, &serving, facts.as_ref(), &Time(Timestamp::now()));
    status::write(&context.client, model, &status).await?;
    Ok(Action::requeue(if facts.is_some() { AT_REST } else { WAITING }))
}

fn report(
    model: &HypicModel,
    serving: &[HypicCluster],
    facts: Option<&ModelFacts>,
    now: &Time,
) -> HypicModelStatus {
    let before = model.status.clone().unwrap_or_default();
    let generation = model.metadata.generation.unwrap_or_default();
    let finding = match (facts, serving) {
        (Some(facts), _) => {
            Finding::new(kind::READY, true, "Loaded", format!("loaded on device '{}'", facts.device))
        }
        (None, []) => Finding::new(kind::READY, Is::Unknown, "NotServed", "no HypicCluster serves it"),
        (None, [first, ..]) => {
            let message =
                format!("HypicCluster '{}' has not loaded it yet: see its conditions", first.name_any());
            Finding::new(kind::READY, false, "Loading", message)
        }
    };
    let conditions = conditions(&[finding], &before.conditions, generation, now);
    let Some(facts) = facts else {
        return HypicModelStatus { observed_generation: Some(generation), conditions, ..before };
    };
    let small = |number: u32| i32::try_from(number).ok();
    HypicModelStatus {
        observed_generation: Some(generation),
        conditions,
        family: Some(facts.family.clone()),
        layers: small(facts.layers),
        linear_layers: small(facts.linear_layers),
        identity: Some(facts.identity.clone()),
        weights_digest: Some(facts.weights_digest.clone()),
        bytes_per_segment: i64::try_from(facts.bytes_per_segment).ok(),
        live_head_percent: small(facts.live_head_percent),
    }
}
