//! Benchmarks that print the baseline and ours side by side: one file per subcommand.

mod lpt;
mod prefill;
mod report;
mod transport;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "hypic-bench", about, version)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The scheduler: longest first against round robin and the optimum, and scatter from 1 to 8 workers.
    Lpt(lpt::Args),
    /// Prefill and decode on the CPU against transformers.
    Prefill(prefill::Args),
    /// Tensor bytes between two processes, plain and over TLS, against the bare socket.
    Transport(transport::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Lpt(args) => lpt::run(&args),
        Bench::Prefill(args) => prefill::run(&args),
        Bench::Transport(args) => transport::run(&args),
    }
}
