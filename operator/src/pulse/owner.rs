//! Whose `spec.replicas` is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::plan::names::MANAGER;

/// Field manager of the number of workers.
pub const AUTOSCALER: &str = "hypic-autoscaler";

/// The field manager that has set `spec.replicas`, where that is neither the autoscaler nor the operator.
///
/// The API server keeps this by itself, whatever way the number was set: `kubectl scale`, an autoscaler through
/// `/scale`, an edit, an apply.
pub fn scaled_by(metadata: &ObjectMeta) -> Option<String> {
    owners(metadata).find(|name| ![AUTOSCALER, MANAGER].contains(name)).map(str::to_owned)
}

/// Whether anybody owns `spec.replicas`. A new pool has its number from the schema, which owns nothing; and the API
/// server then keeps no record of a client that changes it through `/scale`.
pub fn is_claimed(metadata: &ObjectMeta) -> bool {
    owners(metadata).next().is_some()
}

fn owners(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let entries = metadata.managed_fields.iter().flatten();
    let owns = |fields: &serde_json::Value| !fields["f:spec"]["f:replicas"].is_null();
    entries
        .filter(move |entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)))
        .map(|entry| entry.manager.as_deref().unwrap_or("a client without a name"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(manager: &str, operation: &str, subresource: &str, fields: &Value) -> Value {
        let mut entry = json!({
            "manager": manager, "operation": operation, "apiVersion": "hypic.dev/v1alpha1",
            "time": "2026-05-04T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
        });
        if !subresource.is_empty() {
            entry["subresource"] = json!(subresource);
        }
        entry
    }

    /// Who owns the number, with the operator's own entries and these others.
    fn owner(others: Vec<Value>) -> Option<String> {
        let mut entries = vec![
            entry(
                MANAGER,
                "Apply",
                "",
                &json!({
                    "f:metadata": {"f:labels": {"f:hypic.dev/pool": {}}},
                    "f:spec": {"f:clusterName": {}, "f:poolName": {}},
                }),
            ),
            entry(
                MANAGER,
                "Apply",
                "status",
                &json!({"f:status": {"f:replicas": {}, "f:readyReplicas": {}}}),
            ),
        ];
        entries.extend(others);
        let metadata = json!({"name": "fleet-scatter", "managedFields": entries});
        scaled_by(&serde_json::from_value(metadata).unwrap())
    }

    fn replicas() -> Value {
        json!({"f:spec": {"f:replicas": {}}})
    }

    #[test]
    fn a_new_pool_and_one_that_the_autoscaler_set_are_the_operators() {
        assert_eq!(scaled_by(&ObjectMeta::default()), None);
        assert!(!is_claimed(&ObjectMeta::default()));
        assert_eq!(owner(vec![]), None);
        assert_eq!(owner(vec![entry(AUTOSCALER, "Apply", "", &replicas())]), None);
        assert_eq!(owner(vec![entry(MANAGER, "Update", "scale", &replicas())]), None);
    }

    #[test]
    fn whoever_scales_it_is_named_whatever_the_way() {
        for (manager, operation, subresource) in [
            ("kubectl", "Update", "scale"),
            ("kube-controller-manager", "Update", "scale"),
            ("keda", "Update", "scale"),
            ("kubectl-edit", "Update", ""),
            ("argocd-controller", "Apply", ""),
        ] {
            assert_eq!(
                owner(vec![entry(manager, operation, subresource, &replicas())]).as_deref(),
                Some(manager)
            );
        }
    }

    #[test]
    fn a_number_that_two_have_set_is_the_others() {
        let both = vec![
            entry(AUTOSCALER, "Apply", "", &replicas()),
            entry("kubectl", "Update", "scale", &replicas()),
        ];
        assert_eq!(owner(both).as_deref(), Some("kubectl"));
    }

    #[test]
    fn who_set_something_else_does_not_scale_it() {
        assert_eq!(
            owner(vec![
                entry(
                    "kubectl-annotate",
                    "Update",
                    "",
                    &json!({"f:metadata": {"f:annotations": {"f:note": {}}}})
                ),
                entry("someone", "Update", "status", &json!({"f:status": {"f:replicas": {}}})),
                json!({"manager": "empty", "operation": "Update"}),
            ]),
            None
        );
    }
}
