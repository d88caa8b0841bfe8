//! Flags of the programs that start a fleet on loopback and ask it the demo's questions.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::fleet::Fleet;

/// Where such a program finds what it runs and asks.
#[derive(Args)]
pub struct DemoFiles {
    /// Folder with the binaries of router and agent.
    #[arg(long)]
    pub binaries: PathBuf,
    /// Folder for the fleets' files and logs.
    #[arg(long)]
    pub dir: PathBuf,
    /// Folder of the checkpoint.
    #[arg(long)]
    pub model: PathBuf,
    /// Question file.
    #[arg(long)]
    pub eval: PathBuf,
    /// Seconds that a fleet may take until it is ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
}

impl DemoFiles {
    /// Waits until a fleet is ready, for as long as was said.
    ///
    /// # Errors
    /// Who is not, and what to do.
    pub fn wait_ready(&self, fleet: &mut Fleet) -> Result<()> {
        match fleet.wait_ready(Duration::from_secs(self.wait)) {
            // Whoever has ended comes back after no wait.
            Err(error) if fleet.check_alive().is_ok() => {
                Err(error.context("a slow machine needs a longer '--wait SECONDS'"))
            }
            waited => waited,
        }
    }

    /// The checkpoint's folder, absolute.
    ///
    /// # Errors
    /// There is none.
    pub fn model(&self) -> Result<PathBuf> {
        self.model.canonicalize().with_context(|| format!("no model at {}", self.model.display()))
    }
}
