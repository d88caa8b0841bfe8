//! From a plan to writes: only what differs is written, each with its reason.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::cover::difference;
use crate::fault::{Fault, of_refusal, taken};
use crate::observe::{Observed, resource};
use crate::plan::names::{MANAGER, Names, Whose};

/// Annotation of a child: digest of what was applied last. A field that the plan has no more differs in nothing else;
/// the next apply takes it away.
const APPLIED: &str = "hypic.dev/applied";

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
pub fn steps(wanted: &[Value], observed: &Observed, names: &Names) -> Vec<Step> {
    wanted.iter().filter_map(|wanted| step(wanted, observed, names)).collect()
}

fn step(wanted: &Value, observed: &Observed, names: &Names) -> Option<Step> {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let child = (kind.to_owned(), name.to_owned());
    let Some(live) = observed.child(kind, name) else {
        return Some(Step { action: Action::Create(stamped(wanted)), child, why: format!("{kind} {name}") });
    };
    if names.whose(live.meta()) == Whose::Theirs {
        return Some(Step { action: Action::Leave, why: taken(kind, name).message, child });
    }
    let live = serde_json::to_value(live).ok()?;
    let stamped = stamped(wanted);
    let digest = |object: &Value| object["metadata"]["annotations"][APPLIED].clone();
    let what = match difference(&live, wanted) {
        Some(path) => format!("{path} differs"),
        None if digest(&live) != digest(&stamped) => "fields are not asked for any more".to_owned(),
        None => return None,
    };
    Some(Step { action: Action::Update(stamped), child, why: format!("{kind} {name}: {what}") })
}

/// A child as it is applied: with a digest of itself.
pub fn stamped(wanted: &Value) -> Value {
    let digest = blake3::hash(wanted.to_string().as_bytes()).to_hex();
    let mut stamped = wanted.clone();
    stamped["metadata"]["annotations"][APPLIED] = digest[..16].into();
    stamped
}

/// Children that no plan has.
pub fn leftovers(wanted: &[Value], observed: &Observed, names: &Names) -> Vec<Step> {
    let named = |child: &DynamicObject| {
        let kind = child.types.as_ref().map(|types| types.kind.as_str());
        wanted.iter().any(|wanted| {
            wanted["kind"].as_str() == kind && wanted["metadata"]["name"].as_str() == Some(&child.name_any())
        })
    };
    let ours =
        |child: &&DynamicObject| names.whose(child.meta()) == Whose::Ours || names.left_behind(child.meta());
    let unwanted = observed.children.iter().filter(ours).filter(|child| !named(child));
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

/// Carries one step out. A refusal of the API server becomes a fault that names the child, so that the other steps go
/// on; only failures to reach it are errors.
///
/// # Errors
/// The API server cannot be reached.
pub async fn carry_out(client: &Client, names: &Names, step: &Step) -> Result<Option<Fault>, kube::Error> {
    let (kind, name) = &step.child;
    let Some(resource) = resource(kind) else { return Ok(None) };
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &names.namespace, &resource);
    let done = match &step.action {
        Action::Create(object) => match api.get_opt(name).await {
            // One that lacks our labels was not seen.
            Ok(Some(there)) if names.whose(there.meta()) == Whose::Theirs => {
                return Ok(Some(taken(kind, name)));
            }
            Ok(_) => apply(&api, name, object).await,
            Err(error) => Err(error),
        },
        Action::Update(object) => apply(&api, name, object).await,
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
        Err(error) => of_refusal(kind, name, error).map(Some),
    }
}

/// Applies an object.
async fn apply(api: &Api<DynamicObject>, name: &str, object: &Value) -> Result<(), kube::Error> {
    // A misspelt field would be dropped without a word.
    let params = PatchParams::apply(MANAGER).force().validation_strict();
    match api.patch(name, &params, &Patch::Apply(object)).await {
        Err(kube::Error::Api(refusal)) if refusal.code == 422 => {
            replace_lists(api, name, object).await?;
            api.patch(name, &params, &Patch::Apply(object)).await.map(drop)
        }
        applied => applied.map(drop),
    }
}

/// Apply merges lists by their keys: where a hand changed a key (a Service's port), its item would stay beside ours,
/// and the API server refuses the two. A merge patch replaces the list. What it sets is taken off the record again:
/// else it would keep the fields when a later apply drops them.
async fn replace_lists(api: &Api<DynamicObject>, name: &str, object: &Value) -> Result<(), kube::Error> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let merged = api.patch(name, &params, &Patch::Merge(object)).await?;
    let mut records = merged.metadata.managed_fields.unwrap_or_default();
    records.retain(|record| {
        let ours = record.manager.as_deref() == Some(MANAGER) && record.subresource.is_none();
        !(ours && record.operation.as_deref() == Some("Update"))
    });
    let version = merged.metadata.resource_version;
    let change = json!({"metadata": {"managedFields": records, "resourceVersion": version}});
    api.patch(name, &params, &Patch::Merge(change)).await.map(drop)
}
