//! Habits as tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::root;

/// Longest source file, in lines.
const LONGEST: usize = 500;
/// Names that say nothing.
const NAMELESS: [&str; 7] = ["utils", "util", "common", "helpers", "misc", "manager", "mod"];
/// Marks of unfinished work, split so that this file has none.
const MARKS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("dbg", "!(")];

/// Fails with every habit broken.
pub(crate) fn tidy() -> Result<()> {
    let root = root();
    let mut faults = Vec::new();
    for path in tracked(&root)? {
        check(&root, &path, &mut faults)?;
    }
    if !faults.is_empty() {
        bail!("{} habits broken:\n{}", faults.len(), faults.join("\n"));
    }
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("list the files")?;
    let text = String::from_utf8(output.stdout).context("list the files")?;
    Ok(text.lines().map(PathBuf::from).filter(|path| root.join(path).is_file()).collect())
}

fn check(root: &Path, path: &Path, faults: &mut Vec<String>) -> Result<()> {
    let shown = path.display();
    let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    if !matches!(end, "rs" | "cu" | "cuh" | "cpp" | "hpp" | "proto" | "py" | "sh" | "mjs" | "toml" | "md") {
        return Ok(());
    }
    let text = fs::read_to_string(root.join(path)).with_context(|| format!("read {shown}"))?;
    let lines = text.lines().count();
    if matches!(end, "rs" | "cu" | "cuh") && lines > LONGEST {
        faults.push(format!("{shown}: {lines} lines, more than {LONGEST}: split it by what it knows"));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if end == "rs" && NAMELESS.contains(&stem) {
        faults.push(format!("{shown}: '{stem}' names nothing"));
    }
    if end != "md" {
        for (number, line) in text.lines().enumerate() {
            if let Some(mark) = MARKS.iter().find(|mark| line.contains(**mark)) {
                faults.push(format!("{shown}:{}: '{mark}'", number + 1));
            }
            if line.ends_with(' ') || line.ends_with('\t') {
                faults.push(format!("{shown}:{}: white space at the end", number + 1));
            }
        }
    }
    Ok(())
}
