//! `cargo xtask test` and `cargo xtask lint`.

use std::process::Command;

use anyhow::Result;

use crate::cluster_tests::cluster_tests;
use crate::shell::{cargo, root, run, step};
use crate::{charts, clients, dag, tidy};

/// Everything that needs no GPU, cheapest first.
pub(crate) fn test() -> Result<()> {
    step("habits", tidy::tidy)?;
    step("who imports whom", || dag::dag(false))?;
    step("formatting", || cargo(&["fmt", "--all", "--check"]))?;
    step("charts, dashboards and rules", || charts::charts(false))?;
    step("lints", clippy)?;
    step("build", || cargo(&["build", "--workspace", "--bins", "--tests", "--locked"]))?;
    step("OpenAI clients", clients::install)?;
    step("tests", || cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]))?;
    step("on a cluster", cluster_tests)?;
    println!(
        "all tests passed; next: 'cargo xtask up' runs the demo, 'cargo xtask up --local' without a cluster"
    );
    Ok(())
}

/// Formatting, clippy and rustdoc.
pub(crate) fn lint() -> Result<()> {
    step("formatting", || cargo(&["fmt", "--all", "--check"]))?;
    step("clippy", clippy)?;
    step("documentation", || {
        let mut command = Command::new("cargo");
        command.args(["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings");
        run(command.current_dir(root()))
    })
}

fn clippy() -> Result<()> {
    let deny = ["--locked", "--", "-D", "warnings"];
    cargo(&[&["clippy", "--workspace", "--all-targets"][..], &deny].concat())?;
    // What plain 'cargo test' leaves out, "all targets" does too.
    cargo(&[&["clippy", "--package", "hypic-e2e", "--test", "cluster"][..], &deny].concat())
}
