//! `hypic-operator`: flags in, running until SIGTERM or SIGINT.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use hypic_operator::args::Args;
use hypic_operator::run;
use hypic_wire::{process, trace};

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hypic-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let args = Args::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        // Its warnings repeat whole answers of the API server, Secrets too.
        let filter = format!("{},kube_client=error", args.log);
        let _tracing = trace::start("hypic-operator", &filter, args.otlp.as_deref())?;
        let stopped = process::stopped().context("listen for signals")?;
        run::run(args, stopped).await
    })
}
