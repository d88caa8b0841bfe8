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
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::metrics::Kind;
use crate::pulse::Pulse;
use crate::reconcile::{Context, ReconcileError, key, unwinding};
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
    let done = unwinding(pass(&model, &context)).await;
    context.metrics.reconciled(Kind::HypicModel, begun.elapsed().as_secs_f64(), done.is_ok());
    if done.is_ok() {
        context.patience.reset(&ObjectRef::from_obj(&*model).to_string());
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
    let pulses: Vec<Pulse> = serving.iter().filter_map(|cluster| context.pulses.get(&key(cluster))).collect();
    if pulses.is_empty() && !serving.is_empty() && model.status.is_some() {
        // Nobody has been asked yet, as after a start of the operator: what was known stays.
        return Ok(Action::requeue(WAITING));
    }
    let facts = pulses.into_iter().flat_map(|pulse| pulse.agents).find_map(|agent| agent.facts);
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
            let told = first.status.iter().flat_map(|status| &status.conditions);
            let failed = told
                .into_iter()
                .find(|told| told.type_ == kind::MODELS_LOADED && told.reason == "LoadFailed");
            let name = first.name_any();
            match failed {
                Some(failed) => {
                    let message = format!("HypicCluster '{name}': {}", failed.message);
                    Finding::new(kind::READY, false, "LoadFailed", message)
                }
                None => {
                    let message = format!("HypicCluster '{name}' has not loaded it yet: see its conditions");
                    Finding::new(kind::READY, false, "Loading", message)
                }
            }
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
