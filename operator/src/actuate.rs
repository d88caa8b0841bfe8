//! Writes the number of scatter workers and tells of it: the pulse's hand at the API server.

use futures::FutureExt;
use hypic_crds::HypicScatterPool;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{EventType, Recorder};
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::event::event;
use crate::plan::names::{Names, Whose};
use crate::pulse::{
    AUTOSCALER, ActuateError, Actuator, Doing, News, Replicas, Target, Written, is_claimed, scaled_by,
};

/// Scales HypicScatterPools through the API server.
pub struct Scaler {
    /// The API server.
    pub client: Client,
    /// Events.
    pub recorder: Recorder,
}

impl Scaler {
    fn api(&self, target: &Target) -> Api<HypicScatterPool> {
        Api::namespaced(self.client.clone(), &target.namespace)
    }

    async fn get(&self, target: &Target) -> Result<HypicScatterPool, ActuateError> {
        self.api(target).get(&target.object).await.map_err(failed("read", target))
    }
}

/// Sets the number of a pool that nobody owns, so that a new one begins with the workers there are, and whoever
/// changes it later is on record.
///
/// # Errors
/// The API server; a number that somebody took meanwhile is none, nor is a pool that is not there or not ours.
pub async fn claim(client: &Client, names: &Names, object: &str, replicas: i32) -> Result<(), kube::Error> {
    let api = Api::<HypicScatterPool>::namespaced(client.clone(), &names.namespace);
    let Some(pool) = api.get_opt(object).await? else { return Ok(()) };
    if is_claimed(&pool.metadata) || names.whose(&pool.metadata) != Whose::Ours {
        return Ok(());
    }
    let patch = number(object, replicas);
    match api.patch(object, &PatchParams::apply(AUTOSCALER), &Patch::Apply(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

fn number(object: &str, replicas: i32) -> serde_json::Value {
    json!({
        "apiVersion": HypicScatterPool::api_version(&()),
        "kind": HypicScatterPool::kind(&()),
        "metadata": {"name": object},
        "spec": {"replicas": replicas},
    })
}

impl Actuator for Scaler {
    fn read<'a>(&'a self, target: &'a Target) -> Doing<'a, Replicas> {
        async move {
            let pool = self.get(target).await?;
            Ok(Replicas { replicas: pool.spec.replicas, scaled_by: scaled_by(&pool.metadata) })
        }
        .boxed()
    }

    fn set<'a>(&'a self, target: &'a Target, replicas: i32) -> Doing<'a, Written> {
        async move {
            let patch = number(&target.object, replicas);
            // Without force: a number that somebody else has set is theirs.
            let patched = self
                .api(target)
                .patch(&target.object, &PatchParams::apply(AUTOSCALER), &Patch::Apply(&patch))
                .await;
            let refused = match patched {
                Ok(_) => return Ok(Written::Done),
                Err(refused) => refused,
            };
            let conflict = matches!(&refused, kube::Error::Api(status) if status.is_conflict());
            if conflict && let Some(by) = scaled_by(&self.get(target).await?.metadata) {
                return Ok(Written::Taken { by });
            }
            Err(failed("scale", target)(refused))
        }
        .boxed()
    }

    fn publish<'a>(&'a self, target: &'a Target, news: &'a News) -> Doing<'a, ()> {
        async move {
            let pool = self.get(target).await?;
            let weight = if news.warning { EventType::Warning } else { EventType::Normal };
            let event = event(weight, news.reason, &news.action, &news.note);
            for regarding in [Some(pool.object_ref(&())), owner(&pool)].into_iter().flatten() {
                self.recorder.publish(&event, &regarding).await.map_err(failed("tell of", target))?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// The HypicCluster.
fn owner(pool: &HypicScatterPool) -> Option<ObjectReference> {
    let owner =
        pool.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: pool.metadata.namespace.clone(),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}

fn failed(action: &'static str, target: &Target) -> impl FnOnce(kube::Error) -> ActuateError {
    let object = target.object.clone();
    move |source| ActuateError::Call { action, object, source: Box::new(source) }
}

#[cfg(test)]
mod tests;
