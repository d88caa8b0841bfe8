//! The unmodified `openai` packages for Python and JavaScript: streamed, two turns, and a tool.

use std::path::PathBuf;
use std::process::Command;

use hypic_domain::flow::Mode;
use hypic_e2e::fleet::key_of;

use crate::support::{start, workspace};

fn converse(mut command: Command) {
    let tested = start(1, 1);
    let output =
        command.arg(format!("http://{}/v1", tested.fleet.address())).arg(key_of(Mode::Pic)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.trim_end().ends_with("conversation complete"), "{text}\n{errors}");
}

/// Installed by `cargo xtask test`.
fn packages() -> PathBuf {
    let dir = workspace().join(".local/clients");
    assert!(dir.exists(), "the OpenAI packages are not installed; 'cargo xtask test' installs them");
    dir
}

#[test]
fn the_python_package_converses() {
    let mut command = Command::new(packages().join("python/bin/python"));
    command.arg(workspace().join("e2e/clients/conversation.py"));
    converse(command);
}

#[test]
fn the_javascript_package_converses() {
    let packages = packages().join("javascript");
    let mut command = Command::new("node");
    command.arg(workspace().join("e2e/clients/conversation.mjs")).arg(packages);
    converse(command);
}
