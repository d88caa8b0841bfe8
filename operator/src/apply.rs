//! From a plan to writes: only what differs is written, each with its reason.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::cover::difference;
use crate::observe::{Observed, resource};
use crate::plan::names::MANAGER;
use crate::validate::Fault;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Kind and name of the child.
    pub child: (String, String),
    /// Why, for events.
    pub why: String,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The child is not there.
    Create(Value),
    /// A field differs.
    Update(Value),
    /// The plan does not have it.
    Delete {
        /// So that a child of the same name made since is spared.
        uid: String,
    },
    /// Somebody else's object has the name; nothing is done.
    Leave,
}

impl Step {
    /// Word for events.
    pub fn reason(&self) -> &'static str {
        match self.action {
            Action::Create(_) => "Created",
            Action::Update(_) => "Updated",
            Action::Delete { .. } => "Deleted",
            Action::Leave => "NameTaken",
        }
    }
}

/// The writes that make `live` what is `wanted`.
pub fn steps(wanted: &[Value], observed: &Observed, owner: &str) -> Vec<Step> {
    wanted.iter().filter_map(|wanted| step(wanted, observed, owner)).collect()
}

fn step(wanted: &Value, observed: &Observed, owner: &str) -> Option<Step> {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let child = (kind.to_owned(), name.to_owned());
    let Some(live) = observed.child(kind, name) else {
        return Some(Step {
            action: Action::Create(wanted.clone()),
            child,
            why: format!("{kind} {name} is missing"),
        });
    };
    if !is_owned(live, owner) {
        return Some(Step { action: Action::Leave, why: taken(kind, name).message, child });
    }
    let live = serde_json::to_value(live).ok()?;
    let path = difference(&live, wanted)?;
    Some(Step {
        action: Action::Update(wanted.clone()),
        child,
        why: format!("{kind} {name}: {path} differs"),
    })
}

/// Children that no plan has.
pub fn leftovers(wanted: &[Value], observed: &Observed, owner: &str) -> Vec<Step> {
    let named = |child: &DynamicObject| {
        let kind = child.types.as_ref().map(|types| types.kind.as_str());
        wanted.iter().any(|wanted| {
            wanted["kind"].as_str() == kind && wanted["metadata"]["name"].as_str() == Some(&child.name_any())
        })
    };
    let unwanted = observed.children.iter().filter(|child| is_owned(child, owner) && !named(child));
    unwanted
        .filter(|child| child.metadata.deletion_timestamp.is_none())
        .filter_map(|child| {
            let kind = child.types.as_ref()?.kind.clone();
            let why = format!("{kind} {} is not in the spec any more", child.name_any());
            let action = Action::Delete { uid: child.uid()? };
            Some(Step { action, child: (kind, child.name_any()), why })
        })
        .collect()
}

/// The controller of an object has that uid: the same name of an earlier cluster is somebody else.
fn is_owned(child: &DynamicObject, owner: &str) -> bool {
    child
        .owner_references()
        .iter()
        .any(|reference| reference.uid == owner && reference.controller == Some(true))
}

/// Carries one step out. A refusal of the API server becomes a fault that names the child, so that the other steps go
/// on; only failures to reach it are errors.
///
/// # Errors
/// The API server cannot be reached.
pub async fn carry_out(client: &Client, namespace: &str, step: &Step) -> Result<Option<Fault>, kube::Error> {
    let (kind, name) = &step.child;
    let Some(resource) = resource(kind) else { return Ok(None) };
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    if let Action::Create(object) = &step.action {
        // It may lack our label, or be somebody's own: never taken over.
        let owner = object["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        if let Some(there) = api.get_opt(name).await?
            && !is_owned(&there, owner)
        {
            return Ok(Some(taken(kind, name)));
        }
    }
    let done = match &step.action {
        Action::Create(object) | Action::Update(object) => {
            // A misspelt field would be dropped without a word.
            let params = PatchParams::apply(MANAGER).force().validation_strict();
            match api.patch(name, &params, &Patch::Apply(object)).await {
                // Apply merges lists by their keys: where a hand changed a key (a Service's port), its item would stay
                // beside ours, and the API server refuses the two. A merge patch replaces the list.
                Err(kube::Error::Api(refusal)) if refusal.code == 422 => {
                    let params =
                        PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                    api.patch(name, &params, &Patch::Merge(object)).await.map(drop)
                }
                applied => applied.map(drop),
            }
        }
        Action::Delete { uid } => {
            let params = DeleteParams::background()
                .preconditions(kube::api::Preconditions { uid: Some(uid.clone()), resource_version: None });
            api.delete(name, &params).await.map(drop)
        }
        Action::Leave => {
            return Ok(Some(taken(kind, name)));
        }
    };
    match done {
        Ok(()) => Ok(None),
        Err(kube::Error::Api(refusal))
            if refusal.code == 404 && matches!(step.action, Action::Delete { .. }) =>
        {
            Ok(None)
        }
        Err(kube::Error::Api(refusal)) => Ok(Some(refused(kind, name, &refusal.message))),
        Err(error) => Err(error),
    }
}

fn taken(kind: &str, name: &str) -> Fault {
    let message =
        format!("{kind} {name} belongs to somebody else: rename the cluster or the pool, or remove it");
    Fault { reason: "NameTaken", message, blocks: false }
}

fn refused(kind: &str, name: &str, message: &str) -> Fault {
    let reason = if message.contains("exceeded quota") {
        "QuotaExceeded"
    } else if message.contains("immutable") || message.contains("Forbidden: updates to statefulset") {
        "ImmutableField"
    } else {
        "ApplyRefused"
    };
    Fault { reason, message: format!("{kind} {name}: {message}"), blocks: false }
}
