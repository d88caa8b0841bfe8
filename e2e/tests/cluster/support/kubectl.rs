//! kubectl and helm as a user has them.

use std::process::Command;

use anyhow::Error;
use serde_json::Value;

/// What a command printed, or what it complained about.
pub(crate) type Outcome = Result<String, String>;

/// With the API server away, a call ends before the test's patience does.
const PATIENCE: &str = "--request-timeout=20s";

/// Runs kubectl.
pub(crate) fn kubectl(args: &[&str]) -> Outcome {
    hypic_e2e::kubectl::kubectl(&[&[PATIENCE], args].concat()).map_err(in_full)
}

/// Runs kubectl with an object on its standard input.
pub(crate) fn kubectl_with(args: &[&str], object: &Value) -> Outcome {
    hypic_e2e::kubectl::kubectl_with(&[&[PATIENCE], args].concat(), object).map_err(in_full)
}

/// Runs helm.
pub(crate) fn helm(args: &[&str]) -> Outcome {
    output(Command::new("helm").args(args))
}

/// Runs a command to its end.
pub(crate) fn output(command: &mut Command) -> Outcome {
    hypic_e2e::kubectl::output(command, None).map_err(in_full)
}

fn in_full(error: Error) -> String {
    format!("{error:#}")
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// A field as text; empty where it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
