//! What `up`, `down` and `status` do with the lab, in order.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::daemon::{dead, succeeds};
use super::lab::{Lab, STATE};
use super::{cache, control_plane, go, image, machine, network, node, prometheus, remains, tools};
use crate::shell::{root, run, step};

impl Lab {
    /// Starts everything that does not run; a broken lab or one with other settings is started anew.
    pub(crate) fn up(&self, nodes: u8) -> Result<()> {
        let start = Instant::now();
        self.need_outside()?;
        step("check the machine", machine::check)?;
        step("packages", tools::packages)?;
        step("kubectl and helm", tools::download_clients)?;
        go::build()?;
        let _lock = self.lock()?;
        let wanted = fingerprint(nodes)?;
        match step("look for a running cluster", || Ok(self.fault(&wanted)))? {
            None => println!("it runs already"),
            Some(fault) => {
                println!("starting anew: {fault}");
                self.start(nodes)?;
                let file = self.dir().join("complete");
                fs::write(&file, wanted).with_context(|| format!("write {}", file.display()))?;
            }
        }
        println!("{}", self.directions(start.elapsed()));
        Ok(())
    }

    fn start(&self, nodes: u8) -> Result<()> {
        step("clear what an earlier run left", || remains::clear(self))?;
        let images = step("images of the cluster", image::cluster)?;
        for (file, text) in [
            ("nodes", nodes.to_string()),
            (
                "resolv.conf",
                "nameserver 10.96.0.10\nsearch svc.cluster.local cluster.local\noptions ndots:5\n".into(),
            ),
        ] {
            fs::write(self.dir().join(file), text).with_context(|| format!("write {file}"))?;
        }
        for folder in ["logs", "pids", "net", "clients"] {
            fs::create_dir_all(self.dir().join(folder)).with_context(|| format!("create {folder}"))?;
        }
        let nodes = self.nodes();
        step("network", || network::make(self, &nodes))?;
        step("certificates", || control_plane::certificates(self, &nodes))?;
        step("control plane", || control_plane::start(self))?;
        for node in &nodes {
            step(&node.name(), || node::start(node, &images))?;
        }
        step("addons", || control_plane::addons(self, &nodes))?;
        step("Prometheus", || prometheus::start(self))?;
        match dead(self) {
            Some(server) => bail!("{server} ended: see {}", self.log(&server).display()),
            None => Ok(()),
        }
    }

    /// Why this is not a running cluster with these settings.
    fn fault(&self, wanted: &str) -> Option<String> {
        let Ok(made) = fs::read_to_string(self.dir().join("complete")) else {
            return Some("no complete cluster is there".to_owned());
        };
        if made != wanted {
            return Some("it was made with other settings or programs".to_owned());
        }
        if let Some(server) = dead(self) {
            return Some(format!("{server} does not run"));
        }
        if !control_plane::answers(self) {
            return Some("the API server does not answer".to_owned());
        }
        let mut ready = self.client("kubectl");
        ready.args(["wait", "--for=condition=Ready", "node", "--all", "--timeout=30s"]);
        if !succeeds(&mut ready) {
            return Some("not every node is Ready".to_owned());
        }
        (!prometheus::answers(self)).then(|| "Prometheus does not answer".to_owned())
    }

    /// Stops everything and removes what it left.
    pub(crate) fn down(&self) -> Result<()> {
        self.need_outside()?;
        if !self.dir().exists() && remains::find(self)?.is_empty() {
            println!("lab '{}' is down", self.name());
            return Ok(());
        }
        let lock = self.lock()?;
        step("stop the cluster", || remains::clear(self))?;
        fs::remove_dir(self.dir()).with_context(|| format!("remove {}", self.dir().display()))?;
        drop(lock);
        // Another lab may have its files there.
        let _ = fs::remove_dir(STATE);
        println!("nothing is left; {} keeps what was downloaded and built", cache::folder().display());
        Ok(())
    }

    /// Says what runs and what is left.
    pub(crate) fn status(&self) -> Result<()> {
        let remains = remains::find(self)?;
        if remains.is_empty() {
            println!("lab '{}' is down; nothing of it is left on the machine", self.name());
            return Ok(());
        }
        if control_plane::answers(self) {
            run(self.client("kubectl").args(["get", "nodes,pods", "--all-namespaces", "-o", "wide"]))?;
        } else {
            println!("the API server does not answer");
        }
        println!("{remains}");
        if !self.dir().join("complete").exists() {
            bail!(
                "this is left of a run that was cut short: 'cargo xtask cluster down' removes it, 'up' starts anew"
            );
        }
        match dead(self) {
            Some(server) => bail!("{server} does not run: 'cargo xtask cluster up' starts anew"),
            None => Ok(()),
        }
    }

    fn directions(&self, elapsed: Duration) -> String {
        let dir = self.dir();
        [
            format!("the cluster is up after {:.0} s", elapsed.as_secs_f64()),
            "  look:        cargo xtask cluster run -- kubectl get pods --all-namespaces".to_owned(),
            "  a shell:     cargo xtask cluster run -- bash".to_owned(),
            format!("  Prometheus:  cargo xtask cluster run -- curl {}/", self.prometheus()),
            format!(
                "  logs:        {}, who wrote what: {}",
                dir.join("logs").display(),
                self.log("audit").display()
            ),
            "  stop:        cargo xtask cluster down".to_owned(),
        ]
        .join("\n")
    }
}

/// Digest of everything that a running cluster was made from.
fn fingerprint(nodes: u8) -> Result<String> {
    let folder = root().join("e2e/cluster");
    let mut parts = vec![go::kube(), go::kube_router()];
    for name in
        ["config", "image", "kube", "kube-router", "addons.yaml", "node-init.sh", "pki.sh", "pod_targets.py"]
    {
        parts.push(folder.join(name));
    }
    Ok(format!("{} {nodes}", cache::digest(&parts)?))
}
