//! A fleet of real processes on loopback: one router, combine agents, scatter workers. Its files (topology,
//! tenants, secret, model, certificates) are what the operator renders on a cluster.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hypic_domain::flow::Mode;
use hypic_domain::id::{AgentId, Epoch, ModelId};
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_domain::unit::Tokens;
use serde_json::{Value, json};

use crate::certificates::{Authority, CertificateFiles, write_private};
use crate::client::Client;
use crate::push::{Addresses, counters};

/// What to start.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Folder of the fleet's files and logs.
    pub dir: PathBuf,
    /// Folder with the binaries.
    pub binaries: PathBuf,
    /// How the model is served.
    pub model: ModelFile,
    /// The loopback address that all listen on.
    pub host: IpAddr,
    /// Combine agents.
    pub combine: usize,
    /// Scatter workers.
    pub scatter: usize,
    /// Threads of each agent's kernels.
    pub threads: usize,
    /// Further flags of every agent.
    pub agent_flags: Vec<String>,
    /// Further flags of the router.
    pub router_flags: Vec<String>,
}

impl FleetOptions {
    /// The demo's fleet: three combine agents and two scatter workers of one model.
    pub fn demo(dir: &Path, binaries: &Path, model: ModelFile) -> Self {
        Self {
            dir: dir.to_owned(),
            binaries: binaries.to_owned(),
            model,
            host: Ipv4Addr::LOCALHOST.into(),
            combine: 3,
            scatter: 2,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            agent_flags: Vec::new(),
            router_flags: Vec::new(),
        }
    }
}

/// hypic-tiny as the tests and the demo serve it.
pub fn tiny(path: &Path) -> ModelFile {
    ModelFile {
        name: ModelId::from("hypic-tiny"),
        path: path.to_owned(),
        seam: Tokens(8),
        segment_min: Tokens(16),
        segment_max: Tokens(1024),
        format: hypic_domain::tuple::TupleFormat::default(),
        policy: Mode::Pic,
        separator: "<<hypic>>".to_owned(),
        snapshot_min: Tokens(64),
    }
}

/// A running fleet. Dropping it kills every process.
pub struct Fleet {
    options: FleetOptions,
    topology: Topology,
    files: CertificateFiles,
    router_files: CertificateFiles,
    router: String,
    router_control: String,
    processes: BTreeMap<String, Child>,
    agent_http: BTreeMap<String, String>,
}

/// The API key of the tenant whose requests all run in one mode; each mode has a tenant of its own.
pub fn key_of(mode: Mode) -> String {
    format!("sk-local-{}", mode.name())
}

/// The API key of the tenant that the demo shows a mode with, so that the table starts cold.
pub fn show_key_of(mode: Mode) -> String {
    format!("sk-show-{}", mode.name())
}

/// The API key of a tenant that may name any mode.
pub const ANY_MODE_KEY: &str = "sk-local-any";

/// The tenants file of those keys. It has digests, no keys.
pub fn tenants() -> Value {
    let mut tenants = serde_json::Map::new();
    let mut tenant = |key: &str, policy: Value| {
        tenants.insert(blake3::hash(key.as_bytes()).to_hex().to_string(), policy);
    };
    for mode in Mode::ALL {
        let name = mode.name();
        tenant(&key_of(mode), json!({"tenant": name, "pinned": name}));
        tenant(&show_key_of(mode), json!({"tenant": format!("show-{name}"), "pinned": name}));
    }
    tenant(ANY_MODE_KEY, json!({"tenant": "any", "modes": Mode::ALL.map(Mode::name)}));
    Value::Object(tenants)
}

impl Fleet {
    /// Writes the files and starts the processes; [`Fleet::wait_ready`] waits for them.
    pub fn start(options: FleetOptions) -> Result<Self> {
        fs::create_dir_all(options.dir.join("logs")).context("make the fleet's folder")?;
        let authority = Authority::create(&options.dir.join("tls"))?;
        let files = authority.issue("hypic-agent")?;
        let router_files = authority.issue("hypic-router")?;
        let mut ports = Ports { host: options.host, held: Vec::new() };
        let mut agents = Vec::new();
        let roles = [
            (AgentRole::Combine, "combine", options.combine),
            (AgentRole::Scatter, "scatter", options.scatter),
        ];
        for (role, name, count) in roles {
            for number in 0..count {
                agents.push(AgentEntry {
                    id: AgentId(format!("{name}-{number}")),
                    role,
                    control: ports.take()?,
                    bulk: ports.take()?,
                });
            }
        }
        let agent_http =
            agents.iter().map(|agent| Ok((agent.id.0.clone(), ports.take()?))).collect::<Result<_>>()?;
        let (router, router_control) = (ports.take()?, ports.take()?);
        drop(ports);
        let mut fleet = Self {
            topology: Topology { epoch: Epoch(1), revision: 0, agents },
            options,
            files,
            router_files,
            router,
            router_control,
            processes: BTreeMap::new(),
            agent_http,
        };
        fleet.write_files()?;
        let names: Vec<String> = fleet.topology.agents.iter().map(|agent| agent.id.0.clone()).collect();
        for name in names {
            fleet.start_agent(&name)?;
        }
        fleet.start_router()?;
        Ok(fleet)
    }

    fn write_files(&self) -> Result<()> {
        let dir = &self.options.dir;
        write_json(&dir.join("topology.json"), &serde_json::to_value(&self.topology)?)?;
        write_json(&dir.join("model.json"), &serde_json::to_value(&self.options.model)?)?;
        let addresses =
            Addresses { router: self.router.clone(), router_control: self.router_control.clone() };
        write_json(&dir.join("fleet.json"), &serde_json::to_value(addresses)?)?;
        write_json(&dir.join("tenants.json"), &tenants())?;
        let secret: [u8; 32] = rand::random();
        write_private(&dir.join("secret"), &hex::encode(secret))
    }

    /// Starts an agent of the topology, anew after a kill.
    pub fn start_agent(&mut self, name: &str) -> Result<()> {
        let entry = self.topology.agent(&AgentId::from(name)).context("no such agent")?.clone();
        let dir = self.options.dir.clone();
        let mut command = self.command("hypic-node-agent", &self.files.clone());
        command
            .args(["--id", name])
            .args(["--control-listen", &entry.control])
            .args(["--bulk-listen", &entry.bulk])
            .args(["--http-listen", &self.agent_http[name]])
            .arg("--data-dir")
            .arg(dir.join("data").join(name))
            .args(["--threads", &self.options.threads.to_string()])
            .args(&self.options.agent_flags);
        self.spawn(name, command)
    }

    /// Starts the router, anew after a kill.
    pub fn start_router(&mut self) -> Result<()> {
        let dir = self.options.dir.clone();
        let mut command = self.command("hypic-router", &self.router_files.clone());
        command
            .args(["--listen", &self.router])
            .args(["--control-listen", &self.router_control])
            .arg("--tenants")
            .arg(dir.join("tenants.json"))
            .arg("--secret")
            .arg(dir.join("secret"))
            .args(&self.options.router_flags);
        self.spawn("router", command)
    }

    fn command(&self, binary: &str, files: &CertificateFiles) -> Command {
        let mut command = Command::new(self.options.binaries.join(binary));
        command
            .arg("--topology")
            .arg(self.options.dir.join("topology.json"))
            .arg("--model")
            .arg(self.options.dir.join("model.json"))
            .arg("--tls-cert")
            .arg(&files.cert)
            .arg("--tls-key")
            .arg(&files.key)
            .arg("--tls-ca")
            .arg(&files.ca);
        command
    }

    fn spawn(&mut self, name: &str, mut command: Command) -> Result<()> {
        let log = self.options.dir.join("logs").join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).context("open a log")?;
        let errors = file.try_clone().context("open a log")?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        self.processes.insert(name.to_owned(), child);
        Ok(())
    }

    /// Waits until the router is ready and every agent answers its own probe and was seen by the router.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let mut waiting: Vec<(String, String)> =
            self.agent_http.iter().map(|(name, address)| (name.clone(), address.clone())).collect();
        waiting.push(("router".to_owned(), self.router.clone()));
        while !waiting.is_empty() {
            self.check_alive()?;
            // In order: what the router says counts once all agents are ready, since it may not have seen yet
            // that one was away.
            let mut behind = false;
            waiting.retain(|(name, address)| {
                behind = behind || !matches!(Client::new(address, "", "").get("/readyz"), Ok((200, _)));
                behind = behind || (name == "router" && !self.sees_all());
                behind
            });
            if start.elapsed() > limit {
                let names: Vec<&str> = waiting.iter().map(|(name, _)| name.as_str()).collect();
                bail!(
                    "not ready after {} s: {}; their logs are in {}",
                    limit.as_secs(),
                    names.join(", "),
                    self.options.dir.join("logs").display()
                );
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Whether the router would use every agent.
    fn sees_all(&self) -> bool {
        counters(&self.options.dir).is_ok_and(|counters| counters.agents.iter().all(|agent| agent.usable))
    }

    /// Fails with the end of the log when a process has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        for (name, child) in &mut self.processes {
            if let Some(status) = child.try_wait().context("look at a process")? {
                let log = self.options.dir.join("logs").join(format!("{name}.log"));
                let text = fs::read_to_string(&log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(12).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!("{name} ended with {status}; the end of {}:\n{}", log.display(), tail.join("\n"));
            }
        }
        Ok(())
    }

    /// Kills a process with SIGKILL and forgets it.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        let mut child = self.processes.remove(name).with_context(|| format!("{name} does not run"))?;
        child.kill().context("kill")?;
        child.wait().context("wait for the killed")?;
        Ok(())
    }

    /// Waits until a process ends by itself, and forgets it.
    pub fn wait_end(&mut self, name: &str, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        let child = self.processes.get_mut(name).with_context(|| format!("{name} does not run"))?;
        loop {
            if let Some(status) = child.try_wait().context("look at a process")? {
                self.processes.remove(name);
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("{name} still runs after {} s", limit.as_secs());
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// What a process wrote, over all its lives.
    pub fn log(&self, name: &str) -> Result<String> {
        let path = self.options.dir.join("logs").join(format!("{name}.log"));
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// A client that sends `key`.
    pub fn client(&self, key: &str) -> Client {
        Client::new(&self.router, key, self.options.model.name.as_str())
    }

    /// `host:port` of the OpenAI endpoint.
    pub fn address(&self) -> &str {
        &self.router
    }

    /// `host:port` of the router's gRPC listener, for topology pushes.
    pub fn router_control(&self) -> &str {
        &self.router_control
    }

    /// `host:port` of an agent's probes and metrics.
    pub fn agent_http(&self, name: &str) -> Option<&str> {
        self.agent_http.get(name).map(String::as_str)
    }

    /// The fleet's agents.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Certificate files of the agents' role.
    pub fn agent_certificates(&self) -> &CertificateFiles {
        &self.files
    }

    /// The fleet's folder.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Process ids by name.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        self.processes.iter().map(|(name, child)| (name.clone(), child.id())).collect()
    }

    /// Leaves the processes running and gives their ids.
    pub fn keep(mut self) -> BTreeMap<String, u32> {
        let pids = self.pids();
        self.processes.clear();
        pids
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            // A process that is gone already needs no killing.
            let _ = child.kill();
        }
        for child in self.processes.values_mut() {
            let _ = child.wait();
        }
    }
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("write JSON")?;
    fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
}

/// Free ports of loopback, all held until dropped so that none is given twice.
struct Ports {
    host: IpAddr,
    held: Vec<TcpListener>,
}

impl Ports {
    fn take(&mut self) -> Result<String> {
        let listener = TcpListener::bind((self.host, 0)).context("find a free port")?;
        let address = listener.local_addr().context("find a free port")?.to_string();
        self.held.push(listener);
        Ok(address)
    }
}
