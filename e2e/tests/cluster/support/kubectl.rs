//! kubectl and helm as a user has them.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a command printed, or what it complained about.
pub(crate) type Outcome = Result<String, String>;

/// Runs kubectl.
pub(crate) fn kubectl(args: &[&str]) -> Outcome {
    let mut command = Command::new("kubectl");
    // With the API server away, a call must end before the test's patience does.
    command.arg("--request-timeout=20s").args(args).stdin(Stdio::null());
    outcome(&mut command, None)
}

/// Runs kubectl with an object on its standard input.
pub(crate) fn kubectl_with(args: &[&str], object: &Value) -> Outcome {
    let mut command = Command::new("kubectl");
    command.arg("--request-timeout=20s").args(args).args(["--filename", "-"]).stdin(Stdio::piped());
    outcome(&mut command, Some(object))
}

/// Runs helm.
pub(crate) fn helm(args: &[&str]) -> Outcome {
    outcome(Command::new("helm").args(args).stdin(Stdio::null()), None)
}

/// Runs a command to its end, with an object on its standard input if there is one.
pub(crate) fn outcome(command: &mut Command, input: Option<&Value>) -> Outcome {
    let shown = format!("{command:?}");
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| {
            format!("{shown}: {error}: these tests run inside the lab (cargo xtask test)")
        })?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A command that ends early says why on its standard error.
        let _closed = stdin.write_all(input.to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("{shown}: {error}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(said(&output.stdout));
    }
    Err(format!("{shown}: {}: {} {}", output.status, said(&output.stdout), said(&output.stderr)))
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// A field as text; empty where it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
