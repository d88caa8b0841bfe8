//! The project's commands: `cargo xtask --help`. CI calls the same ones.

mod charts;
mod clients;
mod cluster;
mod cluster_tests;
mod dag;
mod debian;
mod down;
mod helm;
mod install;
mod shell;
mod test;
mod tidy;
mod up;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Commands of the hypic workspace")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up and run the demo.
    Up(up::UpArgs),
    /// Undo `up` with the same flags: `down` a cluster, `down --local` the fleet on loopback.
    Down(down::DownArgs),
    /// A Kubernetes cluster to test and show on.
    Cluster(cluster::ClusterArgs),
    /// Push a topology file to the fleet that `up --local --keep` left running.
    PushTopology {
        /// The file; its epoch must not be older than the fleet's.
        file: PathBuf,
    },
    /// Install what the tests need and run every test that needs no GPU.
    Test,
    /// Formatting, lints and documentation, warnings denied.
    Lint,
    /// Habits as tests: file sizes, names, marks.
    Tidy,
    /// Who may import whom, against the committed table.
    Dag {
        /// Write the table anew.
        #[arg(long)]
        write: bool,
    },
    /// Write the definitions of the kinds in `crds/` as YAML into charts/hypic-crds; a test of that crate compares them.
    Crds,
    /// Charts, dashboards and rules, checked without a cluster.
    Charts {
        /// Make the dashboards anew.
        #[arg(long)]
        write: bool,
    },
    /// Ask a Prometheus every query of dashboards and rules, and draw the dashboards.
    Panels(charts::PanelsArgs),
    /// Run a benchmark: `cargo xtask bench -- lpt`; `-- all --write docs/benchmarks/cpu.md` for the page.
    Bench {
        /// Arguments of `hypic-bench`.
        #[arg(trailing_var_arg = true)]
        args: Vec<String>,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Up(args) => up::up(&args),
        Command::Down(args) => down::down(&args),
        Command::Cluster(args) => cluster::cluster(&args),
        Command::PushTopology { file } => {
            shell::cargo(&["build", "--package", "hypic-e2e", "--bins"])?;
            let dir = shell::local_fleet();
            shell::run(
                shell::binary("hypic-push-topology").arg("--dir").arg(dir).arg(std::path::absolute(file)?),
            )
        }
        Command::Test => test::test(),
        Command::Lint => test::lint(),
        Command::Tidy => tidy::tidy(),
        Command::Dag { write } => dag::dag(write),
        Command::Crds => {
            shell::cargo(&["run", "--quiet", "--package", "hypic-crds", "charts/hypic-crds/templates"])
        }
        Command::Charts { write } => charts::charts(write),
        Command::Panels(args) => charts::panels(&args),
        Command::Bench { args } => {
            shell::cargo(&[
                "build",
                "-p",
                "hypic-bench",
                "-p",
                "hypic-router",
                "-p",
                "hypic-node-agent",
                "--bins",
            ])?;
            shell::run(shell::binary("hypic-bench").args(args))
        }
    }
}
