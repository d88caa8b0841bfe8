//! Benchmarks that print the baseline and ours side by side: one file per subcommand.

mod all;
mod lookup;
mod lpt;
mod pace;
mod prefill;
mod report;
mod rig;
mod shuffled;
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
    /// Every bench with its standard settings, and a page of their tables.
    All(all::Args),
    /// Look-up of a prompt's keys over three slot owners, over gRPC with TLS.
    Lookup(lookup::Args),
    /// The scheduler: longest first against round robin and the optimum, and scatter from 1 to 8 workers.
    Lpt(lpt::Args),
    /// Gaps between tokens of running streams while a long prompt is prefilled.
    Pace(pace::Args),
    /// Prefill and decode on the CPU against transformers.
    Prefill(prefill::Args),
    /// Time to the first token when known documents come in another order: recompute, prefix, pic.
    Shuffled(shuffled::Args),
    /// Tensor bytes between two processes, plain and over TLS, against the bare socket.
    Transport(transport::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::All(args) => all::run(&args),
        Bench::Lookup(args) => lookup::run(&args),
        Bench::Lpt(args) => lpt::run(&args),
        Bench::Pace(args) => pace::run(&args),
        Bench::Prefill(args) => prefill::run(&args),
        Bench::Shuffled(args) => shuffled::run(&args),
        Bench::Transport(args) => transport::run(&args),
    }
}
