//! kubectl as the one client of the API server: it knows every way to log in that users have.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Runs kubectl and gives what it prints.
///
/// # Errors
/// When it cannot be started or fails, with what it says.
pub fn kubectl(arguments: &[&str]) -> Result<String> {
    output(Command::new("kubectl").args(arguments), None)
}

/// Runs kubectl with an object as its file.
///
/// # Errors
/// As [`kubectl`].
pub fn kubectl_with(arguments: &[&str], object: &Value) -> Result<String> {
    output(Command::new("kubectl").args(arguments).args(["--filename", "-"]), Some(object))
}

/// Runs a command to its end, with an object on its standard input if there is one, and gives what it prints.
///
/// # Errors
/// When it cannot be started or fails, with what it says.
pub fn output(command: &mut Command, input: Option<&Value>) -> Result<String> {
    let shown = format!("{command:?}");
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {shown}: is it on the PATH?"))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A command that ends early says why on its standard error.
        let _closed = stdin.write_all(input.to_string().as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("wait for {shown}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        bail!("{shown}: {}: {} {}", output.status, said(&output.stdout), said(&output.stderr));
    }
    Ok(said(&output.stdout))
}
