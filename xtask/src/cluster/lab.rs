//! The lab: a cluster in namespaces of this machine. Its names, addresses and files, and how commands get inside.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::tools;
use crate::shell::root;

/// Address of the API server, of Prometheus and of whatever `run` starts.
pub(crate) const ADDRESS: &str = "10.90.0.1";
/// Port of Prometheus there.
pub(crate) const PROMETHEUS: u16 = 9090;
/// Where every lab keeps its files. Not below the checkout: paths of unix sockets must stay short.
pub(crate) const STATE: &str = "/var/lib/hypic-cluster";

/// One cluster; several can stand on one machine under different names.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// A lab by its name.
    ///
    /// # Errors
    /// When files and cgroups cannot be named so.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if name.is_empty() || name.len() > 16 || !name.bytes().all(fits) {
            bail!("--lab '{name}': 1 to 16 lower-case letters and digits");
        }
        Ok(Self { name: name.to_owned() })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Folder of its files.
    pub(crate) fn dir(&self) -> PathBuf {
        Path::new(STATE).join(&self.name)
    }

    /// Folder of its certificates and kubeconfigs.
    pub(crate) fn pki(&self) -> PathBuf {
        self.dir().join("pki")
    }

    /// File of a server's log.
    pub(crate) fn log(&self, server: &str) -> PathBuf {
        self.dir().join("logs").join(server).with_extension("log")
    }

    /// Where its Prometheus listens.
    pub(crate) fn prometheus(&self) -> String {
        format!("http://{ADDRESS}:{PROMETHEUS}")
    }

    /// File that holds on to a network namespace: `switch`, or a node's.
    pub(crate) fn network(&self, name: &str) -> PathBuf {
        self.dir().join("net").join(name)
    }

    /// A command inside the lab's network.
    pub(crate) fn inside(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(enter(&self.network("switch"))).arg("--").arg(program.as_ref());
        command
    }

    /// kubectl, helm or another client inside the lab's network, as the cluster's administrator.
    pub(crate) fn client(&self, program: &str) -> Command {
        let ours = tools::clients().join(program);
        let program = if ours.exists() { ours } else { program.into() };
        let mut command = self.inside(program);
        for (name, value) in self.environment() {
            command.env(name, value);
        }
        command
    }

    /// A command inside the lab, which also gets the cluster's names.
    ///
    /// # Errors
    /// When the lab is not up.
    pub(crate) fn command(&self, words: &[String]) -> Result<Command> {
        self.need_running()?;
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let mut inside = self.inside("unshare");
        inside.args(["--mount", "--propagation", "private", "bash", "-c", script]);
        inside.arg(self.dir().join("resolv.conf")).args(words);
        inside.envs(self.environment()).env("PATH", tools::path());
        Ok(inside)
    }

    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let own = self.dir().join("clients");
        vec![
            ("KUBECONFIG", self.pki().join("admin.kubeconfig")),
            ("KUBECACHEDIR", own.join("kubectl")),
            ("HELM_CACHE_HOME", own.join("helm-cache")),
            ("HELM_CONFIG_HOME", own.join("helm-config")),
            ("HELM_DATA_HOME", own.join("helm-data")),
            ("HYPIC_LAB", self.name.clone().into()),
        ]
    }

    /// Fails with what to do unless `up` has come to its end.
    pub(crate) fn need_running(&self) -> Result<()> {
        if !self.dir().join("complete").exists() {
            bail!("the cluster is not up: cargo xtask cluster up");
        }
        Ok(())
    }

    /// Held while the lab changes, on its folder: whoever holds it may also remove that.
    pub(crate) fn lock(&self) -> Result<File> {
        let dir = self.dir();
        loop {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            let file = File::open(&dir).with_context(|| format!("open {}", dir.display()))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another 'cargo xtask cluster' works on lab '{}': wait for it, or take another name with --lab",
                    self.name
                ),
                Err(TryLockError::Error(fault)) => return Err(fault).context("lock the lab"),
            }
            // Its last holder may have removed the folder in between.
            let held = file.metadata().context("look at the lock")?;
            if fs::metadata(&dir).is_ok_and(|now| now.ino() == held.ino() && now.dev() == held.dev()) {
                return Ok(file);
            }
        }
    }

    /// A shell inside the lab sees its own copies of the mounts and would leave the machine's behind.
    pub(crate) fn need_outside(&self) -> Result<()> {
        let own = fs::metadata("/proc/self/ns/net").context("look at the network namespace")?;
        if fs::metadata(self.network("switch"))
            .is_ok_and(|lab| lab.ino() == own.ino() && lab.dev() == own.dev())
        {
            bail!("this shell is inside the lab: leave it first");
        }
        Ok(())
    }
}

/// The flag of nsenter that enters a network namespace.
pub(crate) fn enter(namespace: &Path) -> OsString {
    let mut flag = OsString::from("--net=");
    flag.push(namespace);
    flag
}

/// A file of `e2e/cluster/config` with its `{{NAME}}`s filled in.
///
/// # Errors
/// When it cannot be read or names something else.
pub(crate) fn configuration(name: &str, values: &[(&str, &str)]) -> Result<String> {
    let file = root().join("e2e/cluster/config").join(name);
    let mut text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    for (name, value) in values {
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    if let Some(at) = text.find("{{") {
        let left = text[at..].split("}}").next().unwrap_or_default();
        bail!("{}: no value for '{left}}}}}'", file.display());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fit_for_files_and_cgroups() {
        assert!(Lab::new("lab2").is_ok());
        for name in ["", "Lab", "a/b", "..", "a-b", "seventeenletters1"] {
            assert!(Lab::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_configuration_has_every_value() {
        let values = [("PKI", "/pki"), ("ADDRESS", "10.0.0.1"), ("NODE", "node-1")];
        let text = configuration("proxy.yaml", &values).unwrap();
        assert!(text.contains("kubeconfig: \"/pki/proxy.kubeconfig\""), "{text}");
        let fault = configuration("proxy.yaml", &values[1..]).unwrap_err().to_string();
        assert!(fault.contains("proxy.yaml") && fault.contains("{{PKI}}"), "{fault}");
    }
}
