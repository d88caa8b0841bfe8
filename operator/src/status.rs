//! Writing statuses: only when they differ, so that a fleet at rest causes no write.

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::plan::names::MANAGER;

/// Writes the status unless the object has it already.
///
/// # Errors
/// The API server; an object that is gone is none.
pub async fn write<K>(client: &Client, object: &K, status: &K::Status) -> Result<(), kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + HasStatus,
    K: Clone + std::fmt::Debug + DeserializeOwned,
    K::Status: PartialEq + Serialize,
{
    if object.status() == Some(status) {
        return Ok(());
    }
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        // The status of an object that was deleted and made anew is not this one's.
        "metadata": {"uid": object.uid()},
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    match api.patch_status(&object.name_any(), &params, &Patch::Apply(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == 404 || refusal.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}
