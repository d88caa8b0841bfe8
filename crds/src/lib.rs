//! The kinds that users write, one file each: [`cluster`], [`model`], [`scatter_pool`].
//!
//! Rules that one object can break alone are CEL in the schema, so that the API server refuses them by field;
//! what needs a second object (a missing model, a missing Secret) is told by the operator in a condition.
//! The YAML under `charts/hypic-crds` is written from these types by `cargo xtask crds`.
#![warn(missing_docs)]
#![expect(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]
#![expect(unreachable_pub, reason = "the derive of KubeSchema repeats each struct inside a function")]

pub mod amount;
pub mod cluster;
pub mod condition;
pub mod model;
pub mod pool;
pub mod scaling;
pub mod scatter_pool;
pub mod yaml;

use kube::CustomResourceExt;

pub use amount::Amount;
pub use cluster::{HypicCluster, HypicClusterSpec, HypicClusterStatus};
pub use model::{HypicModel, HypicModelSpec, HypicModelStatus};
pub use scatter_pool::{HypicScatterPool, HypicScatterPoolSpec, HypicScatterPoolStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Annotation of a CRD: the revision of its schema. The operator refuses to run on an older one, since the API
/// server drops fields that it does not know, and a dropped limit means "no limit".
pub const SCHEMA_REVISION_ANNOTATION: &str = "hypic.dev/schema-revision";
/// Revision of the schemas in this crate; grows with every change of a field or rule.
pub const SCHEMA_REVISION: i64 = 1;

/// Every kind's definition, as the chart installs it.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut all = vec![HypicCluster::crd(), HypicModel::crd(), HypicScatterPool::crd()];
    for definition in &mut all {
        let annotations = definition.metadata.annotations.get_or_insert_default();
        annotations.insert(SCHEMA_REVISION_ANNOTATION.to_owned(), SCHEMA_REVISION.to_string());
        // Deleting the definitions would delete every cluster.
        annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    }
    all
}
