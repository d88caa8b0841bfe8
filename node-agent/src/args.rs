//! Flags and environment, turned once into a checked [`Config`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Parser};
use hypic_domain::id::AgentId;
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::{AgentEntry, Topology};
use hypic_wire::tls::{Security, TlsFiles};
use serde::de::DeserializeOwned;

/// Serves one model on this machine's devices: composes, decodes, builds, keeps tuples.
#[derive(Debug, Parser)]
#[command(name = "hypic-node-agent", version)]
pub struct Args {
    /// This agent's name in the topology.
    #[arg(long, env = "HYPIC_AGENT_ID")]
    id: AgentId,
    /// Topology file (JSON); newer topologies are pushed.
    #[arg(long, env = "HYPIC_TOPOLOGY_FILE")]
    topology: PathBuf,
    /// Model file (JSON): checkpoint folder, seam, segment sizes, formats, policy.
    #[arg(long, env = "HYPIC_MODEL_FILE")]
    model: PathBuf,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    tls: Tls,
    /// Send spans to this OTLP endpoint, such as http://collector:4317.
    #[arg(long, env = "HYPIC_OTLP_ENDPOINT")]
    otlp: Option<String>,
    /// Log filter, as of tracing-subscriber's EnvFilter.
    #[arg(long, env = "HYPIC_LOG_FILTER", default_value = "info")]
    log: String,
    /// Seconds that running streams get to finish after SIGTERM.
    #[arg(long, env = "HYPIC_DRAIN_SECONDS", default_value_t = 30)]
    drain_seconds: u64,
}

/// Where it listens.
#[derive(Debug, ClapArgs)]
pub struct Listen {
    /// `host:port` for gRPC.
    #[arg(long, env = "HYPIC_CONTROL_LISTEN", default_value = "[::]:7400")]
    pub control_listen: String,
    /// `host:port` for tensor bytes.
    #[arg(long, env = "HYPIC_BULK_LISTEN", default_value = "[::]:7401")]
    pub bulk_listen: String,
    /// `host:port` for probes and metrics.
    #[arg(long, env = "HYPIC_HTTP_LISTEN", default_value = "[::]:7402")]
    pub http_listen: String,
}

/// How much it may take.
#[derive(Clone, Debug, ClapArgs)]
pub struct Memory {
    /// Threads of the kernels; all cores without it.
    #[arg(long, env = "HYPIC_THREADS")]
    pub threads: Option<usize>,
    /// Cap over weights, pages, state slots and snapshots.
    #[arg(long, env = "HYPIC_ENGINE_BYTES", default_value_t = 2 << 30)]
    pub engine_bytes: u64,
    /// Sequences that run at once.
    #[arg(long, env = "HYPIC_SLOTS", default_value_t = 32)]
    pub slots: usize,
    /// Requests that wait for a slot; more are refused.
    #[arg(long, env = "HYPIC_QUEUE", default_value_t = 256)]
    pub queue: usize,
    /// Rows of one step.
    #[arg(long, env = "HYPIC_STEP_ROWS", default_value_t = 512)]
    pub step_rows: usize,
    /// Cap of the Device tier (on a CPU machine an arena in main memory).
    #[arg(long, env = "HYPIC_DEVICE_BYTES", default_value_t = 1 << 30)]
    pub device_bytes: u64,
    /// Cap of the Host tier.
    #[arg(long, env = "HYPIC_HOST_BYTES", default_value_t = 1 << 30)]
    pub host_bytes: u64,
    /// Cap of the Disk tier; 0 for none.
    #[arg(long, env = "HYPIC_DISK_BYTES", default_value_t = 4 << 30)]
    pub disk_bytes: u64,
    /// Folder of the Disk tier.
    #[arg(long, env = "HYPIC_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Identity of this process.
#[derive(Debug, ClapArgs)]
pub struct Tls {
    /// Certificate chain, PEM.
    #[arg(long, env = "HYPIC_TLS_CERT", required_unless_present = "plain")]
    tls_cert: Option<PathBuf>,
    /// Private key, PEM.
    #[arg(long, env = "HYPIC_TLS_KEY", required_unless_present = "plain")]
    tls_key: Option<PathBuf>,
    /// The fleet's CA, PEM.
    #[arg(long, env = "HYPIC_TLS_CA", required_unless_present = "plain")]
    tls_ca: Option<PathBuf>,
    /// No TLS: for networks that are closed or encrypted already.
    #[arg(long, env = "HYPIC_PLAIN", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    plain: bool,
}

/// Flags and files, checked.
pub struct Config {
    /// This agent.
    pub me: AgentEntry,
    /// The topology to start from.
    pub topology: Topology,
    /// How the model is served.
    pub model: ModelFile,
    /// Where it listens.
    pub listen: Listen,
    /// How much it may take.
    pub memory: Memory,
    /// TLS or plain.
    pub security: Security,
    /// OTLP endpoint.
    pub otlp: Option<String>,
    /// Log filter.
    pub log: String,
    /// Grace after SIGTERM.
    pub drain: std::time::Duration,
}

impl Args {
    /// Reads the files and checks that they fit together.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, or an agent that is not in the topology.
    pub fn check(self) -> Result<Config> {
        let topology: Topology = read(&self.topology, "topology file")?;
        let model: ModelFile = read(&self.model, "model file")?;
        if model.segment_min.0 == 0 || model.segment_max < model.segment_min {
            bail!("{}: segment_min must be at least 1 and at most segment_max", self.model.display());
        }
        if self.memory.slots == 0 || self.memory.step_rows == 0 {
            bail!("slots and step rows must be at least 1");
        }
        let me = topology.agent(&self.id).cloned().with_context(|| {
            format!("agent '{}' is not in {} (epoch {})", self.id, self.topology.display(), topology.epoch)
        })?;
        Ok(Config {
            me,
            topology,
            model,
            listen: self.listen,
            memory: self.memory,
            security: self.tls.security()?,
            otlp: self.otlp,
            log: self.log,
            drain: std::time::Duration::from_secs(self.drain_seconds),
        })
    }
}

impl Tls {
    fn security(self) -> Result<Security> {
        match (self.tls_cert, self.tls_key, self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => {
                TlsFiles { cert, key, ca }.load().context("load the TLS files")
            }
            _ if self.plain => Ok(Security::Plain),
            _ => bail!("give --tls-cert, --tls-key and --tls-ca together, or --plain"),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("read the {what} {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse the {what} {}", path.display()))
}
