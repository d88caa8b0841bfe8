//! `hypic-push-topology`: pushes a topology file to a local fleet. `cargo xtask push-topology` runs it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use hypic_domain::topology::Topology;
use hypic_e2e::push::push;

/// Pushes a topology file to the router and the agents of a local fleet.
#[derive(Parser)]
struct Args {
    /// The fleet's folder.
    #[arg(long)]
    dir: PathBuf,
    /// The topology file.
    topology: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let shown = args.topology.display();
    let text = fs::read_to_string(&args.topology).with_context(|| format!("read {shown}"))?;
    let topology: Topology = serde_json::from_str(&text).with_context(|| format!("parse {shown}"))?;
    let mut refused = false;
    for pushed in push(&args.dir, &topology)? {
        let verdict = if pushed.accepted { "goes by it" } else { "REFUSED: is ahead" };
        println!("{:<12} epoch {:<4} revision {:<4} {verdict}", pushed.to, pushed.epoch, pushed.revision);
        refused |= !pushed.accepted;
    }
    if refused {
        let (epoch, revision) = topology.version();
        bail!("epoch {epoch} revision {revision} is older than what part of the fleet goes by");
    }
    Ok(())
}
