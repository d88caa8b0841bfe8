//! `hypic-demo`: applies the sample to a Kubernetes cluster, waits until it is Ready, asks it the demo's questions and
//! shows scatter workers come and go. `cargo xtask up` sets all up and runs this where kubectl reaches the cluster.

mod kubectl;
mod ready;
mod sample;
mod scatter;
mod watch;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use hypic_domain::flow::Mode;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::key_of;
use hypic_e2e::questions;
use hypic_e2e::report::Report;
use hypic_e2e::show::{Shown, pic_fault};

/// Shows the sample's HypicCluster.
#[derive(Parser)]
struct Args {
    /// Manifest of the sample.
    #[arg(long)]
    sample: PathBuf,
    /// Question file.
    #[arg(long)]
    eval: PathBuf,
    /// Write the results as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Questions of the table.
    #[arg(long, default_value_t = 72)]
    questions: usize,
    /// Seconds that the fleet may take until it is Ready; a model that is loaded on slow cores needs a part of the default.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
    /// Stop once the fleet is Ready: no questions, no table, no cold traffic.
    #[arg(long)]
    no_eval: bool,
    /// Reach the endpoint by 'kubectl port-forward', where Services cannot be reached.
    #[arg(long)]
    forward: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    let step = |text: &str| println!("[{:6.1} s] {text}", start.elapsed().as_secs_f64());

    sample::remove(&step)?;
    sample::apply(&args.sample)?;
    step(&format!("applied {}", args.sample.display()));
    let applied = Instant::now();
    let endpoint = ready::wait(Duration::from_secs(args.wait), &step)?;
    step(&format!("Ready {:.1} s after it was applied", applied.elapsed().as_secs_f64()));
    if args.no_eval {
        return Ok(());
    }

    let forward = if args.forward { Some(kubectl::forward(&endpoint.service, endpoint.port)?) } else { None };
    let address = forward.as_ref().map_or(endpoint.address.as_str(), |forward| forward.address.as_str());
    let client = |key: &str| Client::new(address, key, sample::MODEL);
    let all = questions::read(&args.eval)?;
    let shown = Shown { model: sample::MODEL, client: &client, step: &step };
    let mut report = shown.ask(&all, args.questions)?;
    let first = all.first().context("the question file is empty")?;
    // What has been measured is written even if the workers do not come.
    let scatter = scatter::show(&client(&key_of(Mode::Pic)), first, &step);
    report.scatter = scatter.as_ref().ok().copied();
    write(&args, &report, &step)?;
    let seen = scatter?;
    step(&format!(
        "scatter workers: {} at the start, {} at the peak, {} at the end",
        seen.start, seen.peak, seen.end
    ));
    match pic_fault(&report) {
        Some(fault) => bail!(fault),
        None => Ok(()),
    }
}

fn write(args: &Args, report: &Report, step: &dyn Fn(&str)) -> Result<()> {
    if let Some(path) = &args.report {
        report.write(path)?;
        step(&format!("wrote {}", path.display()));
    }
    Ok(())
}
