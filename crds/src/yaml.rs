//! The definitions as files of the chart.

use crate::definitions;

const HEAD: &str = "# Written by 'cargo xtask crds' from the types in crds/. Do not edit.\n";

/// File names and their text.
pub fn files() -> Vec<(String, Result<String, serde_yaml_ng::Error>)> {
    definitions()
        .iter()
        .map(|definition| {
            let text = serde_yaml_ng::to_string(definition).map(|text| format!("{HEAD}{text}"));
            (format!("{}.yaml", definition.spec.names.plural), text)
        })
        .collect()
}
