//! `cargo xtask cluster`: a real Kubernetes to test and show on. What it is made of: `e2e/cluster/README.md`.

mod cache;
mod control_plane;
mod daemon;
mod go;
mod image;
mod lab;
mod lifecycle;
mod machine;
mod network;
mod node;
mod prometheus;
mod registry;
mod remains;
mod target;
mod tools;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};

pub(crate) use image::{Archive, Binaries, TAG};
pub(crate) use lab::Lab;
pub(crate) use machine::check as check_machine;
pub(crate) use target::{Target, TargetArgs};

/// Flags of `cluster`.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start it, unless it runs already.
    Up {
        /// Nodes of the lab.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
    },
    /// Stop it and remove what it left on the machine.
    Down,
    /// Say what runs, and what is left of an earlier run.
    Status,
    /// Run a command where the cluster is reached, with kubectl, helm and KUBECONFIG set.
    Run {
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Build the hypic image and bring it to the nodes.
    Images {
        /// Tag of the image, in the place of the version (with '-cuda' behind it).
        #[arg(long)]
        tag: Option<String>,
        /// Take the binaries as they were built last.
        #[arg(long)]
        no_build: bool,
        /// With an agent that computes on NVIDIA GPUs too, and the library it needs (540 MB more).
        #[arg(long, conflicts_with = "no_build")]
        cuda: bool,
    },
    /// Cut a node of the lab off the network, or bring it back.
    Link {
        /// Number of the node.
        node: u8,
        /// What the link shall be.
        state: LinkState,
    },
    /// Kill the lab's API server, or start it again with the same data.
    Apiserver {
        /// What to do.
        action: ServerAction,
    },
}

/// State of a node's link.
#[derive(Clone, Copy, ValueEnum)]
enum LinkState {
    Up,
    Down,
}

/// What happens to a server.
#[derive(Clone, Copy, ValueEnum)]
enum ServerAction {
    Stop,
    Start,
}

/// Runs a subcommand.
pub(crate) fn cluster(args: &ClusterArgs) -> Result<()> {
    let target = Target::new(&args.target)?;
    match &args.command {
        Command::Up { nodes } => target.up(*nodes),
        Command::Down => target.down(),
        Command::Status => lab_of(&target)?.status(),
        Command::Run { command } => target.run(command),
        Command::Images { tag, no_build, cuda } => {
            let binaries = match (no_build, cuda) {
                (true, _) => Binaries::AsBuilt,
                (_, true) => Binaries::Cuda,
                _ => Binaries::Cpu,
            };
            target.images(tag.as_deref().unwrap_or(binaries.tag()), binaries).map(drop)
        }
        Command::Link { node, state } => {
            let state = match state {
                LinkState::Up => "up",
                LinkState::Down => "down",
            };
            network::link(lab_of(&target)?, *node, state)
        }
        Command::Apiserver { action } => {
            let lab = lab_of(&target)?;
            lab.need_running()?;
            match action {
                ServerAction::Stop => control_plane::stop_apiserver(lab),
                ServerAction::Start => control_plane::start_apiserver(lab),
            }
        }
    }
}

fn lab_of(target: &Target) -> Result<&Lab> {
    match target {
        Target::Lab(lab) => Ok(lab),
        _ => bail!("only the lab can do this: leave '--cluster' out"),
    }
}
