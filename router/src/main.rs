//! `hypic-router`: flags in, serving until SIGTERM or SIGINT.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use hypic_router::args::Args;
use hypic_router::run;
use hypic_wire::{process, trace};
use prometheus::Registry;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hypic-router: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let config = Args::parse().check()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let _tracing = trace::start("hypic-router", &config.log, config.otlp.as_deref())?;
        let stopped = process::stopped().context("listen for signals")?;
        run::run(config, Registry::new(), stopped).await?;
        Ok(())
    })
}
