//! Which cluster a command is for, and how it is reached.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use super::cache::folder;
use super::daemon::succeeds;
use super::image::{self, Archive, Binaries};
use super::lab::Lab;
use super::registry::Pusher;
use super::{go, tools};
use crate::shell::{on_path, run, step};

/// Name of the kind cluster, and of its nodes' prefix.
const KIND: &str = "hypic";

/// Name of the lab unless another is asked for.
const LAB: &str = "lab";

/// Flags that choose a cluster.
#[derive(Args, Clone)]
pub(crate) struct TargetArgs {
    /// A cluster in namespaces of this machine, the one of your KUBECONFIG, or one of 'kind'.
    #[arg(long, value_enum, default_value_t = Which::Lab, global = true)]
    cluster: Which,
    /// Push images below this instead of loading them into nodes, e.g. registry.example.org/team.
    #[arg(long, value_name = "HOST/PREFIX", global = true)]
    registry: Option<String>,
    /// Name of the lab; several can run beside each other.
    #[arg(long, value_name = "NAME", env = "HYPIC_LAB", default_value = LAB, global = true)]
    lab: String,
}

/// Kinds of clusters.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Lab,
    Current,
    Kind,
}

/// A cluster.
pub(crate) enum Target {
    /// In namespaces of this machine.
    Lab(Lab),
    /// Somebody else's, reached by the user's own KUBECONFIG.
    Current {
        /// Where its nodes pull images from.
        registry: Option<String>,
    },
    /// One that the program 'kind' runs in containers.
    Kind {
        /// Where its nodes pull images from, if they are not loaded.
        registry: Option<String>,
    },
}

impl Target {
    /// The target of the flags.
    ///
    /// # Errors
    /// When the flags do not fit together.
    pub(crate) fn new(args: &TargetArgs) -> Result<Self> {
        let registry = args.registry.as_deref().map(|prefix| prefix.trim_end_matches('/').to_owned());
        Ok(match args.cluster {
            Which::Lab if registry.is_some() => {
                bail!("--registry: the lab reaches no registry; its nodes get images directly")
            }
            Which::Lab => Self::Lab(Lab::new(&args.lab)?),
            Which::Current => Self::Current { registry },
            Which::Kind => Self::Kind { registry },
        })
    }

    /// The flags that choose it, for commands that people are told to type.
    pub(crate) fn flags(&self) -> String {
        match self {
            Self::Lab(lab) if lab.name() == LAB => String::new(),
            Self::Lab(lab) => format!(" --lab {}", lab.name()),
            Self::Current { .. } => " --cluster current".to_owned(),
            Self::Kind { .. } => " --cluster kind".to_owned(),
        }
    }

    /// Whether nodes have to pull the hypic image.
    pub(crate) fn pulls(&self) -> bool {
        matches!(self, Self::Current { .. } | Self::Kind { registry: Some(_) })
    }

    /// Whether what takes minutes has been built by an earlier run.
    pub(crate) fn is_warm(&self) -> bool {
        !matches!(self, Self::Lab(_)) || go::kube().exists()
    }

    /// Starts the cluster, or makes sure that somebody else's answers.
    pub(crate) fn up(&self, nodes: u8) -> Result<()> {
        if let Self::Lab(lab) = self {
            return lab.up(nodes);
        }
        step("kubectl and helm", tools::download_clients)?;
        if matches!(self, Self::Kind { .. }) {
            need_kind()?;
            if !succeeds(self.client("kubectl").args(["get", "--raw=/readyz"])) {
                step("create the kind cluster", || {
                    let mut kind = Command::new("kind");
                    run(kind.args(["create", "cluster", "--name", KIND, "--kubeconfig"]).arg(kind_config()))
                })?;
            }
        }
        step("reach the cluster", || run(self.client("kubectl").args(["get", "nodes"])))
            .context("no cluster answers: check KUBECONFIG, or leave '--cluster' out for the lab")
    }

    /// Stops the cluster; somebody else's is left alone.
    pub(crate) fn down(&self) -> Result<()> {
        match self {
            Self::Lab(lab) => lab.down(),
            Self::Current { .. } => {
                println!("the cluster of your KUBECONFIG is not ours to stop");
                Ok(())
            }
            Self::Kind { .. } => {
                need_kind()?;
                let mut kind = Command::new("kind");
                run(kind.args(["delete", "cluster", "--name", KIND, "--kubeconfig"]).arg(kind_config()))
            }
        }
    }

    /// kubectl, helm or another client, set to reach the cluster.
    pub(crate) fn client(&self, program: &str) -> Command {
        let ours = tools::clients().join(program);
        let plain = if ours.exists() { Command::new(ours) } else { Command::new(program) };
        match self {
            Self::Lab(lab) => lab.client(program),
            Self::Current { .. } => plain,
            Self::Kind { .. } => {
                let mut command = plain;
                command.env("KUBECONFIG", kind_config());
                command
            }
        }
    }

    /// A command that reaches the cluster, with kubectl and helm on its PATH.
    ///
    /// # Errors
    /// When there is no command, or the lab is not up.
    pub(crate) fn command(&self, words: &[String]) -> Result<Command> {
        match (self, words) {
            (_, []) => bail!("run: no command"),
            (Self::Lab(lab), _) => lab.command(words),
            (_, [program, arguments @ ..]) => {
                let mut command = self.client(program);
                command.args(arguments).env("PATH", tools::path());
                Ok(command)
            }
        }
    }

    /// Replaces this process by such a command.
    pub(crate) fn run(&self, words: &[String]) -> Result<()> {
        Err(self.command(words)?.exec()).context("start the command")
    }

    /// Makes the hypic image and brings it to where the nodes find it.
    pub(crate) fn images(&self, tag: &str, binaries: Binaries) -> Result<Archive> {
        // Asked for before an image is made, which takes minutes.
        let way = self.way()?;
        let prefix = match &way {
            Way::Push { prefix, .. } => Some(*prefix),
            Way::Import(_) | Way::Load => None,
        };
        let image = step("make the hypic image", || image::hypic(prefix, tag, binaries))?;
        step("bring it to the nodes", || way.bring(&image))?;
        Ok(image)
    }

    fn way(&self) -> Result<Way<'_>> {
        match self {
            Self::Lab(lab) => {
                lab.need_running()?;
                Ok(Way::Import(lab))
            }
            Self::Current { registry: None } => {
                bail!("--registry: say where the nodes of your cluster pull images from (HOST/PREFIX)")
            }
            Self::Kind { registry: None } => Ok(Way::Load),
            Self::Current { registry: Some(prefix) } | Self::Kind { registry: Some(prefix) } => {
                Ok(Way::Push { prefix, pusher: Pusher::find()? })
            }
        }
    }
}

/// How an image comes to the nodes.
enum Way<'a> {
    /// Into each node of a lab.
    Import(&'a Lab),
    /// Into the nodes of a kind cluster.
    Load,
    /// Through a registry.
    Push { prefix: &'a str, pusher: Pusher },
}

impl Way<'_> {
    fn bring(&self, image: &Archive) -> Result<()> {
        match self {
            Self::Import(lab) => {
                let _lock = lab.lock()?;
                for node in lab.nodes() {
                    let news = if node.import(image)? { "imported" } else { "has it" };
                    println!("{}: {news}", node.name());
                }
                Ok(())
            }
            Self::Load => {
                let mut kind = Command::new("kind");
                run(kind.args(["load", "image-archive", "--name", KIND]).arg(&image.file))
            }
            Self::Push { pusher, .. } => pusher.push(image),
        }
    }
}

fn kind_config() -> PathBuf {
    folder().join("kind.kubeconfig")
}

fn need_kind() -> Result<()> {
    if !on_path("kind") {
        bail!("--cluster kind: the program 'kind' is not on the PATH (https://kind.sigs.k8s.io)");
    }
    if !succeeds(Command::new("docker").arg("info")) {
        bail!("--cluster kind: 'docker info' fails; kind runs its nodes in docker");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(cluster: Which, registry: Option<&str>) -> Result<Target> {
        Target::new(&TargetArgs { cluster, registry: registry.map(str::to_owned), lab: "lab".to_owned() })
    }

    #[test]
    fn the_lab_pulls_from_no_registry() {
        let fault = target(Which::Lab, Some("registry.test/team")).err().unwrap().to_string();
        assert!(fault.starts_with("--registry:"), "{fault}");
    }

    #[test]
    fn somebody_elses_cluster_needs_a_registry_for_images() {
        let fault =
            target(Which::Current, None).unwrap().images("1", Binaries::AsBuilt).err().unwrap().to_string();
        assert!(fault.starts_with("--registry:"), "{fault}");
    }
}
