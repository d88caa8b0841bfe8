//! What only the lab can do: cut links, kill the API server, look into a pod's network, tell who wrote what.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::kubectl::{Outcome, output, text};

/// The workspace's root.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The project's commands; cargo puts them beside this test's own folder.
fn xtask(args: &[&str]) -> Outcome {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    output(Command::new(folder.join("hypic-xtask")).args(args))
}

/// The API server, killed; dropping it starts the server again.
pub(crate) struct ApiServerAway;

/// Kills the API server.
pub(crate) fn kill_api_server() -> ApiServerAway {
    let away = ApiServerAway;
    xtask(&["cluster", "apiserver", "stop"]).unwrap();
    away
}

impl Drop for ApiServerAway {
    fn drop(&mut self) {
        if let Err(error) = xtask(&["cluster", "apiserver", "start"]) {
            eprintln!("the API server stays away: {error}");
        }
    }
}

/// A node's link; dropping it brings it back.
pub(crate) struct Link<'a> {
    node: &'a str,
}

/// Cuts a node, such as `node-2`, off.
pub(crate) fn link(node: &str) -> Link<'_> {
    xtask(&["cluster", "link", node.trim_start_matches("node-"), "down"]).unwrap();
    Link { node }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let back = xtask(&["cluster", "link", self.node.trim_start_matches("node-"), "up"]);
        if let Err(error) = back {
            eprintln!("the link of {} stays down: {error}", self.node);
        }
    }
}

/// Asks the lab's Prometheus every query of dashboards and rules.
pub(crate) fn panels(seconds: u32) -> Outcome {
    xtask(&["panels", "http://10.90.0.1:9090", "--span", &seconds.to_string()])
}

/// A command in the network of a pod. `program` is one that runs in it.
pub(crate) fn pod_command(pod: &Value, program: &str, command: &[&str]) -> Outcome {
    let process = process(text(&pod["metadata"]["uid"]), program)?;
    output(Command::new("nsenter").args(["--target", &process, "--net", "--"]).args(command))
}

/// The process of a container: its control group names the pod.
fn process(pod: &str, program: &str) -> Result<String, String> {
    for entry in fs::read_dir("/proc").map_err(|error| format!("list the processes: {error}"))?.flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("cmdline").split('\0').next().is_some_and(|first| first.ends_with(program))
            && read("cgroup").contains(pod)
        {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(format!("pod {pod} has no process {program} on this machine"))
}

/// Who wrote what since it was opened.
pub(crate) struct AuditLog {
    file: PathBuf,
    from: usize,
}

impl AuditLog {
    /// From now on.
    pub(crate) fn open() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the lab says by it where its files are")]
        let config = std::env::var("KUBECONFIG").expect("KUBECONFIG: these tests run inside the lab");
        let file = Path::new(&config).parent().and_then(Path::parent).unwrap().join("logs/audit.log");
        let from = fs::read(&file).unwrap().len();
        Self { file, from }
    }

    /// Writes by `user` in `namespace` since then, as `verb resource name`.
    pub(crate) fn writes(&self, user: &str, namespace: &str) -> Vec<String> {
        let log = fs::read(&self.file).unwrap();
        let text_of = String::from_utf8_lossy(&log[self.from.min(log.len())..]).into_owned();
        let entries = text_of.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of = entries.filter(|entry| {
            entry["user"]["username"] == user && entry["objectRef"]["namespace"] == namespace
        });
        of.map(|entry| {
            let about = &entry["objectRef"];
            let part = text(&about["subresource"]);
            format!("{} {} {} {part}", text(&entry["verb"]), text(&about["resource"]), text(&about["name"]))
        })
        .collect()
    }
}
