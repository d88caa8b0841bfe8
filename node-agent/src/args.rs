//! Flags and environment, turned once into a checked [`Config`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Parser};
use hypic_domain::id::AgentId;
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::Topology;
use hypic_wire::address::HostPort;
use hypic_wire::process::TlsArgs;
use hypic_wire::tls::Security;
use hypic_wire::topology_file::TopologyFile;
use serde::de::DeserializeOwned;

use crate::device_name::DeviceName;

/// Serves one model on this machine's devices: composes, decodes, builds, keeps tuples.
#[derive(Debug, Parser)]
#[command(name = "hypic-node-agent", version)]
pub struct Args {
    /// This agent's name in the topology. Until it is there the agent waits.
    #[arg(long, env = "HYPIC_AGENT_ID")]
    id: AgentId,
    /// Topology file (JSON), read again when it changes; newer topologies are pushed too.
    #[arg(long, env = "HYPIC_TOPOLOGY_FILE")]
    topology: PathBuf,
    /// Model file (JSON): checkpoint folder, seam, segment sizes, formats, policy.
    #[arg(long, env = "HYPIC_MODEL_FILE")]
    model: PathBuf,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    tls: TlsArgs,
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
#[derive(Clone, Debug, ClapArgs)]
pub struct Listen {
    /// `host:port` for gRPC.
    #[arg(long, env = "HYPIC_CONTROL_LISTEN", default_value = "[::]:7400")]
    pub control_listen: HostPort,
    /// `host:port` for tensor bytes.
    #[arg(long, env = "HYPIC_BULK_LISTEN", default_value = "[::]:7401")]
    pub bulk_listen: HostPort,
    /// `host:port` for probes and metrics.
    #[arg(long, env = "HYPIC_HTTP_LISTEN", default_value = "[::]:7402")]
    pub http_listen: HostPort,
}

/// How much it may take.
#[derive(Clone, Debug, ClapArgs)]
pub struct Memory {
    /// `cpu`, `cuda` or `cuda:N` for the GPU of that number; `cuda:N,M` shares the model out among several.
    #[arg(long, env = "HYPIC_DEVICE", default_value = "cpu")]
    pub device: DeviceName,
    /// Further devices that build cold segments for it: of its kind, each with the whole model and as much memory, such
    /// as `cuda:1`, or `cuda:1,cuda:2` for two. None beside several GPUs in `device`.
    #[arg(long, env = "HYPIC_SCATTER_DEVICE", value_delimiter = ',')]
    pub scatter_device: Vec<DeviceName>,
    /// Tokens of cached bodies whose keys and values the GPUs hold at once; they count under the cap.
    #[arg(long, env = "HYPIC_BODY_TOKENS", default_value_t = 1 << 17)]
    pub body_tokens: usize,
    /// Threads of the CPU kernels; all cores without it.
    #[arg(long, env = "HYPIC_THREADS")]
    pub threads: Option<usize>,
    /// Cap over weights, pages, state slots, snapshots and what builds record, on all GPUs of `device` together, and on each
    /// further device.
    #[arg(long, env = "HYPIC_ENGINE_BYTES", default_value_t = 2 << 30)]
    pub engine_bytes: u64,
    /// Sequences that run at once.
    #[arg(long, env = "HYPIC_SLOTS", default_value_t = 32)]
    pub slots: usize,
    /// Requests that wait for a slot; more are refused.
    #[arg(long, env = "HYPIC_QUEUE", default_value_t = 256)]
    pub queue: usize,
    /// Rows of prompts and builds in one step: 512 on the CPU and 8192 on a GPU without it.
    #[arg(long, env = "HYPIC_STEP_ROWS")]
    pub step_rows: Option<usize>,
    /// Cap of the Device tier: on a GPU what stays there of tuples that nobody uses, beside keys and values, which
    /// counts under the engine's cap; on a CPU machine an arena in main memory.
    #[arg(long, env = "HYPIC_DEVICE_BYTES", default_value_t = 1 << 30)]
    pub device_bytes: u64,
    /// Cap of the Host tier. On a machine with a GPU its memory is pinned at the start.
    #[arg(long, env = "HYPIC_HOST_BYTES", default_value_t = 1 << 30)]
    pub host_bytes: u64,
    /// Cap of the Disk tier; 0 for none.
    #[arg(long, env = "HYPIC_DISK_BYTES", default_value_t = 4 << 30)]
    pub disk_bytes: u64,
    /// Folder of the Disk tier.
    #[arg(long, env = "HYPIC_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

impl Memory {
    /// Rows of one step: as many as a device of the kind computes at its speed.
    pub(crate) fn rows(&self) -> usize {
        self.step_rows.unwrap_or(match self.device {
            DeviceName::Cpu => 512,
            DeviceName::Cuda(_) => 8192,
        })
    }
}

/// Flags and files, checked.
pub struct Config {
    /// This agent's name in the topology.
    pub id: AgentId,
    /// The topology to start from.
    pub topology: Topology,
    /// Where newer ones may come from.
    pub topology_file: TopologyFile,
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
    /// A file that cannot be read or parsed, or flags that make no sense.
    pub fn check(self) -> Result<Config> {
        let topology_file = TopologyFile::new(self.topology);
        let topology = topology_file.read().context("start from the topology file")?;
        let model: ModelFile = read(&self.model, "model file")?;
        if model.segment_min.0 == 0 || model.segment_max < model.segment_min {
            bail!("{}: segment_min must be at least 1 and at most segment_max", self.model.display());
        }
        if self.memory.slots == 0 || self.memory.step_rows == Some(0) {
            bail!("slots and step rows must be at least 1");
        }
        check_devices(&self.memory.device, &self.memory.scatter_device)?;
        Ok(Config {
            id: self.id,
            topology,
            topology_file,
            model,
            listen: self.listen,
            memory: self.memory,
            security: self.tls.security().context("load the TLS files")?,
            otlp: self.otlp,
            log: self.log,
            drain: std::time::Duration::from_secs(self.drain_seconds),
        })
    }
}

/// Scatter devices take over what they build from each other: all are of one kind, and no GPU is named twice.
fn check_devices(device: &DeviceName, further: &[DeviceName]) -> Result<()> {
    if let DeviceName::Cuda(numbers) = device
        && numbers.len() > 1
        && !further.is_empty()
    {
        bail!("{device} shares the model out among its GPUs: scatter devices beside it are not built");
    }
    for (place, name) in further.iter().enumerate() {
        let is_twice = name == device || further[..place].contains(name);
        if std::mem::discriminant(name) != std::mem::discriminant(device) {
            bail!("scatter device {name} is not of the kind of {device}");
        }
        if is_twice && *name != DeviceName::Cpu {
            bail!("device {name} is named twice");
        }
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("read the {what} {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse the {what} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_addresses_are_checked_at_once() {
        <Args as clap::CommandFactory>::command().debug_assert();
        let parse = |address: &str| {
            let base = ["hypic-node-agent", "--id", "a", "--topology", "t", "--model", "m", "--plain"];
            Args::try_parse_from(base.iter().chain(&["--bulk-listen", address]))
        };
        assert!(parse("[::1]:0").is_ok());
        assert!(parse("::1").is_err_and(|error| error.to_string().contains("--bulk-listen")));
    }

    #[test]
    fn scatter_devices_are_of_one_kind_and_different() {
        let check = |device: &str, further: &[&str]| {
            let further: Vec<DeviceName> = further.iter().map(|name| name.parse().unwrap()).collect();
            check_devices(&device.parse().unwrap(), &further)
        };
        assert!(check("cuda:0", &["cuda:1", "cuda:2"]).is_ok());
        assert!(check("cpu", &["cpu"]).is_ok());
        assert!(check("cuda:0,1", &[]).is_ok());
        for (device, further) in [
            ("cuda:0", ["cuda:1", "cuda:1"]),
            ("cuda:1", ["cuda:0", "cuda:1"]),
            ("cuda:0", ["cpu", "cpu"]),
            ("cuda:0,1", ["cuda:2", "cuda:3"]),
        ] {
            assert!(check(device, &further).is_err(), "{device} with {further:?}");
        }
    }

    #[test]
    fn no_variable_of_ours_can_come_from_a_service() {
        // Kubernetes sets NAME_SERVICE_HOST, NAME_SERVICE_PORT(_X), NAME_PORT and NAME_PORT_(...) for every Service.
        let command = <Args as clap::CommandFactory>::command();
        for name in command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()) {
            let name = format!("{name}_");
            assert!(!name.contains("_PORT_") && !name.contains("_SERVICE_HOST_"), "{name}");
        }
    }
}
