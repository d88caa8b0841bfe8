//! `hypic-node-agent`: flags in, serving until SIGTERM or SIGINT.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use hypic_node_agent::args::Args;
use hypic_node_agent::run;
use hypic_wire::{process, trace};
use prometheus::Registry;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hypic-node-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let config = Args::parse().check()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(async {
        let _tracing = trace::start("hypic-node-agent", &config.log, config.otlp.as_deref())?;
        let stopped = process::stopped().context("listen for signals")?;
        run::run(config, Registry::new(), stopped).await
    });
    // A checkpoint that is still being read holds up nobody.
    runtime.shutdown_background();
    ended
}
