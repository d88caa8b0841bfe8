//! Writing statuses: only when they differ, so that a fleet at rest causes no write.

use hypic_crds::{
    HypicCluster, HypicClusterStatus, HypicModel, HypicModelStatus, HypicScatterPool, HypicScatterPoolStatus,
};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::plan::names::MANAGER;

macro_rules! writer {
    ($name:ident, $kind:ty, $status:ty, $text:literal) => {
        /// Writes the status unless the object has it already.
        ///
        /// # Errors
        /// The API server; an object that is gone is none.
        pub async fn $name(client: &Client, object: &$kind, status: &$status) -> Result<(), kube::Error> {
            if object.status.as_ref() == Some(status) {
                return Ok(());
            }
            let api = Api::<$kind>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
            let patch = json!({
                "apiVersion": "hypic.dev/v1alpha1",
                "kind": $text,
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
    };
}

writer!(write, HypicCluster, HypicClusterStatus, "HypicCluster");
writer!(write_model, HypicModel, HypicModelStatus, "HypicModel");
writer!(write_scatter_pool, HypicScatterPool, HypicScatterPoolStatus, "HypicScatterPool");
