//! Flags and environment, turned once into a checked [`Config`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as ClapArgs, Parser};
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::Topology;
use hypic_wire::address::HostPort;
use hypic_wire::follow::Live;
use hypic_wire::process::TlsArgs;
use hypic_wire::tls::Security;
use hypic_wire::topology_file::TopologyFile;
use serde::de::DeserializeOwned;

use crate::admission::Limits;
use crate::error::RouterError;
use crate::front::Bounds;
use crate::http::Origins;
use crate::listen::Connections;
use crate::tenant::{Policy, Tenants};

/// Answers OpenAI requests with a fleet of node-agents.
#[derive(Debug, Parser)]
#[command(name = "hypic-router", version)]
pub struct Args {
    /// Topology file (JSON), read again when it changes; newer topologies are pushed too.
    #[arg(long, env = "HYPIC_TOPOLOGY_FILE")]
    topology: PathBuf,
    /// Model file (JSON): checkpoint folder, seam, segment sizes, formats, policy.
    #[arg(long, env = "HYPIC_MODEL_FILE")]
    model: PathBuf,
    /// Secret file of the fleet: 64 hex digits. Scopes of tenants are made with it.
    #[arg(long, env = "HYPIC_SECRET_FILE")]
    secret: PathBuf,
    #[command(flatten)]
    tenants: TenantArgs,
    /// `host:port` for clients, probes and metrics.
    #[arg(long, env = "HYPIC_LISTEN", default_value = "[::]:8080")]
    listen: HostPort,
    /// `host:port` for topology pushes over gRPC.
    #[arg(long, env = "HYPIC_CONTROL_LISTEN", default_value = "[::]:7400")]
    control_listen: HostPort,
    #[command(flatten)]
    bounds: BoundArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Origin whose web pages may call, such as http://localhost:3000; `*` for all. None by default.
    #[arg(long = "cors-origin", env = "HYPIC_CORS_ORIGINS", value_delimiter = ',')]
    cors_origins: Vec<String>,
    /// Milliseconds between two questions to each agent for its load.
    #[arg(long, env = "HYPIC_POLL_MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    poll_ms: u64,
    /// Send spans to this OTLP endpoint, such as http://collector:4317.
    #[arg(long, env = "HYPIC_OTLP_ENDPOINT")]
    otlp: Option<String>,
    /// Log filter, as of tracing-subscriber's EnvFilter.
    #[arg(long, env = "HYPIC_LOG_FILTER", default_value = "info")]
    log: String,
    /// Seconds after SIGTERM in which requests are still taken, while whoever sends them learns to go elsewhere.
    #[arg(long, env = "HYPIC_WITHDRAW_SECONDS", default_value_t = 3)]
    withdraw_seconds: u64,
    /// Seconds that running answers get to finish after that.
    #[arg(long, env = "HYPIC_DRAIN_SECONDS", default_value_t = 30)]
    drain_seconds: u64,
}

/// Who may ask.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
struct TenantArgs {
    /// Tenants file (JSON): BLAKE3 of an API key in hex → tenant and policy. Read again when it changes.
    #[arg(long, env = "HYPIC_TENANTS_FILE")]
    tenants: Option<PathBuf>,
    /// Ask for no key: everybody is one tenant.
    #[arg(long, env = "HYPIC_NO_KEYS")]
    no_keys: bool,
}

/// How much at once, how large, how long.
#[derive(Debug, ClapArgs)]
struct BoundArgs {
    /// Requests that run at once.
    #[arg(long, env = "HYPIC_RUNNING", default_value_t = 256)]
    running: usize,
    /// Requests that wait; more are refused with 429.
    #[arg(long, env = "HYPIC_QUEUED", default_value_t = 1024)]
    queued: usize,
    /// Connections of clients at once; more wait.
    #[arg(long, env = "HYPIC_CONNECTIONS", default_value_t = 8192)]
    connections: usize,
    /// Seconds that a connection may take to send the head of its next request.
    #[arg(long, env = "HYPIC_HEAD_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    head_seconds: u64,
    /// Threads for parsing and tokenising; all cores but one without it.
    #[arg(long, env = "HYPIC_CPU_THREADS")]
    cpu_threads: Option<usize>,
    /// Largest body in bytes.
    #[arg(long, env = "HYPIC_BODY_BYTES", default_value_t = 64 << 20)]
    body_bytes: usize,
    /// Seconds from a request's arrival to its last token.
    #[arg(long, env = "HYPIC_DEADLINE_SECONDS", default_value_t = 600)]
    deadline_seconds: u64,
    /// Milliseconds that one question to the index may take.
    #[arg(long, env = "HYPIC_LOOKUP_MS", default_value_t = 250)]
    lookup_ms: u64,
    /// Seconds of silence after which a stream gets a comment line; 0 for none.
    #[arg(long, env = "HYPIC_KEEP_ALIVE_SECONDS", default_value_t = 2.0)]
    keep_alive_seconds: f64,
}

/// Flags and files, checked.
pub struct Config {
    /// The topology to start from.
    pub topology: Topology,
    /// Where newer ones may come from.
    pub topology_file: TopologyFile,
    /// How the model is served.
    pub model: ModelFile,
    /// Makes scopes of tenants.
    pub secret: [u8; 32],
    /// Who may ask.
    pub tenants: Live<Tenants, RouterError>,
    /// For clients, probes and metrics.
    pub listen: HostPort,
    /// For topology pushes.
    pub control_listen: HostPort,
    /// How many at once.
    pub limits: Limits,
    /// Of clients.
    pub connections: Connections,
    /// Threads for parsing and tokenising.
    pub cpu_threads: usize,
    /// Bounds of a request.
    pub bounds: Bounds,
    /// TLS or plain.
    pub security: Security,
    /// Whose web pages may call.
    pub origins: Origins,
    /// Between two questions to an agent.
    pub poll: Duration,
    /// OTLP endpoint.
    pub otlp: Option<String>,
    /// Log filter.
    pub log: String,
    /// Between SIGTERM and the end of new requests.
    pub withdraw: Duration,
    /// Grace for running answers after that.
    pub drain: Duration,
}

impl Args {
    /// Reads the files and checks that they fit together.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, or flags that make no sense together.
    pub fn check(self) -> Result<Config, RouterError> {
        let BoundArgs {
            running,
            queued,
            connections,
            head_seconds,
            cpu_threads,
            body_bytes,
            deadline_seconds,
            lookup_ms,
            keep_alive_seconds,
        } = self.bounds;
        if running == 0 || connections == 0 {
            return Err(RouterError::CheckFlags("--running and --connections must be at least 1"));
        }
        let keep_alive = Duration::try_from_secs_f64(keep_alive_seconds)
            .map_err(|_| RouterError::CheckFlags("--keep-alive-seconds must be a time"))?;
        let model: ModelFile = read_json(&self.model, "model file")?;
        if model.segment_min.0 == 0 || model.segment_max < model.segment_min {
            return Err(RouterError::CheckFile {
                path: self.model,
                message: "segment_min must be at least 1 and at most segment_max".to_owned(),
            });
        }
        let spare_core = || std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1);
        let topology_file = TopologyFile::new(self.topology);
        Ok(Config {
            topology: topology_file.read().map_err(RouterError::LoadTopology)?,
            topology_file,
            model,
            secret: read_secret(&self.secret)?,
            tenants: match self.tenants.tenants {
                Some(path) => Live::read(vec![path.clone()], move || Tenants::load(&path))?,
                None => Live::read(Vec::new(), || Ok(Tenants::Open(Box::new(Policy::open()))))?,
            },
            listen: self.listen,
            control_listen: self.control_listen,
            limits: Limits { running, queued },
            connections: Connections { most: connections, head: Duration::from_secs(head_seconds) },
            cpu_threads: cpu_threads.unwrap_or_else(spare_core).max(1),
            bounds: Bounds {
                body: body_bytes,
                deadline: Duration::from_secs(deadline_seconds),
                lookup: Duration::from_millis(lookup_ms),
                keep_alive,
            },
            security: self.tls.security().map_err(RouterError::Connect)?,
            origins: Origins { allowed: self.cors_origins },
            poll: Duration::from_millis(self.poll_ms),
            otlp: self.otlp,
            log: self.log,
            withdraw: Duration::from_secs(self.withdraw_seconds),
            drain: Duration::from_secs(self.drain_seconds),
        })
    }
}

fn read(path: &Path) -> Result<String, RouterError> {
    std::fs::read_to_string(path).map_err(|source| RouterError::ReadFile { path: path.to_owned(), source })
}

fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, RouterError> {
    serde_json::from_str(&read(path)?).map_err(|source| RouterError::ParseFile {
        path: path.to_owned(),
        what,
        source,
    })
}

fn read_secret(path: &Path) -> Result<[u8; 32], RouterError> {
    let mut secret = [0; 32];
    // The message must not repeat what stands in the file.
    hex::decode_to_slice(read(path)?.trim(), &mut secret).map_err(|_| RouterError::CheckFile {
        path: path.to_owned(),
        message: "the secret must be 64 hex digits".to_owned(),
    })?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Args as clap::CommandFactory>::command().debug_assert();
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

    #[test]
    fn keys_are_asked_for_unless_a_flag_says_otherwise() {
        let parse = |more: &[&str]| {
            let base = ["hypic-router", "--topology", "t", "--model", "m", "--secret", "s", "--plain"];
            Args::try_parse_from(base.iter().chain(more)).map(|args| args.tenants.no_keys)
        };
        assert!(parse(&[]).is_err());
        assert!(parse(&["--tenants", "f", "--no-keys"]).is_err());
        assert!(parse(&["--no-keys"]).expect("valid"));
        assert!(!parse(&["--tenants", "f"]).expect("valid"));
    }

    #[test]
    fn a_secret_is_64_hex_digits() {
        let file = tempfile::NamedTempFile::new().expect("temp file");
        std::fs::write(file.path(), "ab".repeat(32) + "\n").expect("write");
        assert_eq!(read_secret(file.path()).expect("valid"), [0xab; 32]);
        std::fs::write(file.path(), "ab".repeat(31)).expect("write");
        let error = read_secret(file.path()).expect_err("short");
        assert!(!error.to_string().contains("abab"));
    }
}
