//! A node: namespaces of its own with a containerd, a kubelet, a kube-proxy and a kube-router inside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::daemon::{self, quietly, running, succeeds};
use super::image::Archive;
use super::lab::{Lab, configuration, enter};
use super::{go, remains};
use crate::shell::root;

/// Fixed paths that its programs write to; each node gets a private copy.
const POINTS: [&str; 6] = [
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];

/// A node by its number, from 1.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    lab: Lab,
    number: u8,
}

impl Node {
    /// A node of a lab.
    pub(crate) fn new(lab: &Lab, number: u8) -> Self {
        Self { lab: lab.clone(), number }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Its name in the cluster.
    pub(crate) fn name(&self) -> String {
        format!("node-{}", self.number)
    }

    /// Its address on the switch.
    pub(crate) fn address(&self) -> String {
        format!("10.90.0.1{}", self.number)
    }

    /// The addresses of its pods.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.88.{}.0/24", self.number)
    }

    /// Its network namespace.
    pub(crate) fn network(&self) -> PathBuf {
        self.lab.network(&self.name())
    }

    /// Its cgroup in every hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("hypic-{}-n{}", self.lab.name(), self.number)
    }

    /// Folder of its files.
    pub(crate) fn dir(&self) -> PathBuf {
        self.lab.dir().join(format!("n{}", self.number))
    }

    /// A command inside all its namespaces.
    ///
    /// # Errors
    /// When the node does not run.
    pub(crate) fn inside(&self, program: impl AsRef<Path>) -> Result<Command> {
        let init = self.init().with_context(|| format!("{} does not run", self.name()))?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &init.to_string(), "--mount", "--uts", "--ipc", "--net", "--pid", "--"]);
        command.arg(program.as_ref());
        Ok(command)
    }

    /// Its PID 1: the child of the 'unshare' that made its namespaces.
    fn init(&self) -> Option<u32> {
        let parent = running(&self.lab, &self.name())?;
        fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?.trim().parse().ok()
    }

    /// Gives an image to its containerd, unless it has it.
    pub(crate) fn import(&self, image: &Archive) -> Result<bool> {
        let folder = self.dir().join("images");
        let had = folder.join(image.reference.replace('/', "_"));
        if fs::read_to_string(&had).is_ok_and(|key| key == image.key) {
            return Ok(false);
        }
        quietly(self.containerd().args(["--namespace", "k8s.io", "images", "import"]).arg(&image.file))?;
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        fs::write(&had, &image.key).with_context(|| format!("write {}", had.display()))?;
        Ok(true)
    }

    fn containerd(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.dir().join("containerd.sock"));
        command
    }

    fn configure(&self) -> Result<()> {
        let (dir, pki) = (self.dir(), self.lab.pki());
        let (pod_cidr, cgroup, address, name) = (self.pod_cidr(), self.cgroup(), self.address(), self.name());
        let (dir_text, pki_text) = (dir.to_string_lossy(), pki.to_string_lossy());
        let values = [
            ("DIR", dir_text.as_ref()),
            ("PKI", pki_text.as_ref()),
            ("POD_CIDR", pod_cidr.as_str()),
            ("CGROUP", cgroup.as_str()),
            ("ADDRESS", address.as_str()),
            ("NODE", name.as_str()),
        ];
        fs::create_dir_all(dir.join("cni")).with_context(|| format!("create {}", dir.display()))?;
        for (source, target) in [
            ("containerd.toml", "containerd.toml"),
            ("pods.conflist", "cni/10-pods.conflist"),
            ("kubelet.yaml", "kubelet.yaml"),
            ("proxy.yaml", "proxy.yaml"),
        ] {
            let target = dir.join(target);
            fs::write(&target, configuration(source, &values)?)
                .with_context(|| format!("write {}", target.display()))?;
        }
        Ok(())
    }
}

impl Lab {
    /// The nodes that `up` was asked for.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let text = fs::read_to_string(self.dir().join("nodes")).unwrap_or_default();
        let count = text.trim().parse::<u8>().unwrap_or(0);
        (1..=count).map(|number| Node::new(self, number)).collect()
    }
}

/// Starts a node and waits until its runtime has the images; it becomes Ready on its own.
pub(crate) fn start(node: &Node, images: &[Archive]) -> Result<()> {
    let (lab, dir, name) = (&node.lab, node.dir(), node.name());
    node.configure()?;
    remains::make_mount_points(&POINTS)?;
    let mut init = Command::new("nsenter");
    init.arg(enter(&node.network())).args(["--", "unshare"]);
    init.args(["--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    init.args(["--propagation", "private", "bash"]).arg(root().join("e2e/cluster/node-init.sh"));
    init.arg(&dir).args([&name, &node.cgroup()]).args(POINTS);
    let mut init = daemon::start(lab, &name, init)?;
    daemon::wait(&mut init, "its namespaces are ready", Duration::from_secs(20), || {
        dir.join("ready").exists()
    })?;

    let serve = |server: &str, command: Command| daemon::start(lab, &format!("{name}-{server}"), command);
    let mut containerd = node.inside("containerd")?;
    containerd.arg("--config").arg(dir.join("containerd.toml"));
    let mut containerd = serve("containerd", containerd)?;
    daemon::wait(&mut containerd, "it answers", Duration::from_secs(60), || {
        succeeds(node.containerd().arg("version"))
    })?;
    for image in images {
        node.import(image)?;
    }

    let mut kubelet = node.inside(go::kube())?;
    kubelet.arg("kubelet").arg("--config").arg(dir.join("kubelet.yaml"));
    kubelet.arg("--kubeconfig").arg(lab.pki().join(&name).with_extension("kubeconfig"));
    kubelet.args(["--hostname-override", &name, "--node-ip", &node.address()]);
    serve("kubelet", kubelet)?;
    let mut proxy = node.inside(go::kube())?;
    proxy.arg("proxy").arg("--config").arg(dir.join("proxy.yaml"));
    serve("proxy", proxy)?;
    Ok(())
}

/// Starts what enforces network policies; it ends at once on a node that the cluster does not know yet.
pub(crate) fn enforce_policies(node: &Node) -> Result<()> {
    let (lab, name) = (&node.lab, node.name());
    let mut router = node.inside(go::kube_router())?;
    router.args(["--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false"]);
    router.args(["--run-firewall=true", "--service-cluster-ip-range=10.96.0.0/16"]);
    router.args(["--health-port=0", "--metrics-port=0", "--hostname-override", &name]);
    router.arg("--kubeconfig").arg(lab.pki().join("kube-router.kubeconfig"));
    daemon::start(lab, &format!("{name}-kube-router"), router)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_fit_their_limit() {
        let lab = Lab::new("sixteenletters16").unwrap();
        let socket = Node::new(&lab, 9).dir().join("containerd.sock");
        assert!(socket.as_os_str().len() < 100, "{}", socket.display());
    }
}
