//! Who may import whom: the workspace's dependency table, against `docs/dependencies.txt`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::root;

/// Compares the table with the committed one, or writes it.
pub(crate) fn dag(write: bool) -> Result<()> {
    let file = root().join("docs/dependencies.txt");
    let table = table()?;
    if write {
        return fs::write(&file, table).with_context(|| format!("write {}", file.display()));
    }
    let committed = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    if committed != table {
        bail!(
            "the crates' dependencies differ from docs/dependencies.txt:\n{table}\nIf that is meant: cargo xtask dag --write"
        );
    }
    Ok(())
}

fn table() -> Result<String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root())
        .output()
        .context("read the workspace")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read the workspace")?;
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let mut ours: Vec<String> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str()?.strip_prefix("hypic-").map(str::to_owned))
            .collect();
        ours.sort();
        let name = package["name"].as_str().unwrap_or_default().trim_start_matches("hypic-").to_owned();
        rows.insert(name, ours);
    }
    let mut text = String::from("# crate: what of ours it imports. Written by 'cargo xtask dag --write'.\n");
    for (name, ours) in rows {
        writeln!(text, "{name}: {}", ours.join(", ")).context("write the table")?;
    }
    Ok(text)
}
