//! The definitions that the API server serves must be ours or newer: it drops fields that it does not know, and a
//! dropped limit means "no limit".

use hypic_crds::{SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION, definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};

/// Why the operator does not start.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A definition cannot be read.
    #[error("read the definition {name}: {source}")]
    Read {
        /// Which.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// There is none.
    #[error("the definition {name} is not installed: helm install hypic-crds charts/hypic-crds")]
    Missing {
        /// Which.
        name: String,
    },
    /// It is of an earlier release.
    #[error(
        "the definition {name} has schema revision {found}, and this operator needs {SCHEMA_REVISION}: helm upgrade \
         hypic-crds charts/hypic-crds"
    )]
    Old {
        /// Which.
        name: String,
        /// Its revision.
        found: i64,
    },
}

/// Checks every definition.
///
/// # Errors
/// The first that is missing, old, or cannot be read.
pub async fn check(client: &Client) -> Result<(), SchemaError> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for wanted in definitions() {
        let name = wanted.name_any();
        let found = api.get_opt(&name).await;
        let found =
            found.map_err(|source| SchemaError::Read { name: name.clone(), source: Box::new(source) })?;
        fits(name, found.as_ref())?;
    }
    Ok(())
}

fn fits(name: String, found: Option<&CustomResourceDefinition>) -> Result<(), SchemaError> {
    let Some(found) = found else { return Err(SchemaError::Missing { name }) };
    let revision = found.annotations().get(SCHEMA_REVISION_ANNOTATION).and_then(|text| text.parse().ok());
    match revision.unwrap_or_default() {
        found if found < SCHEMA_REVISION => Err(SchemaError::Old { name, found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_missing_definition_is_named_with_what_to_do() {
        for mut definition in definitions() {
            let name = definition.name_any();
            fits(name.clone(), Some(&definition)).expect("ours");
            let annotations = definition.annotations_mut();
            annotations.insert(SCHEMA_REVISION_ANNOTATION.to_owned(), (SCHEMA_REVISION + 1).to_string());
            fits(name.clone(), Some(&definition)).expect("a newer one");
            definition.annotations_mut().remove(SCHEMA_REVISION_ANNOTATION);
            let old = fits(name.clone(), Some(&definition)).expect_err("an old one").to_string();
            assert!(old.contains(&name) && old.contains("helm upgrade"), "{old}");
            let missing = fits(name.clone(), None).expect_err("none").to_string();
            assert!(missing.contains(&name) && missing.contains("helm install"), "{missing}");
        }
    }
}
