//! Flags of the programs that start a fleet on loopback and ask it the demo's questions.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

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
}

impl DemoFiles {
    /// The checkpoint's folder, absolute.
    ///
    /// # Errors
    /// There is none.
    pub fn model(&self) -> Result<PathBuf> {
        self.model.canonicalize().with_context(|| format!("no model at {}", self.model.display()))
    }
}
