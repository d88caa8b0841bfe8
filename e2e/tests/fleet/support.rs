//! Fleets for tests, one at a time: the machine is small.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hypic_domain::serving::ModelFile;
use hypic_domain::topology::AgentRole;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::{Fleet, FleetOptions, tiny};
use hypic_e2e::questions::{self, Question};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A fleet with its folder and its turn.
pub(crate) struct Tested {
    pub(crate) fleet: Fleet,
    _dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Where cargo put the binaries of router and agent: beside this test's own folder.
pub(crate) fn binaries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().to_owned()
}

pub(crate) fn model() -> ModelFile {
    tiny(&workspace().join("e2e/models/hypic-tiny"))
}

pub(crate) fn start(combine: usize, scatter: usize) -> Tested {
    start_with(combine, scatter, |_| {})
}

pub(crate) fn start_with(combine: usize, scatter: usize, change: impl FnOnce(&mut FleetOptions)) -> Tested {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut options = FleetOptions::demo(dir.path(), &binaries(), model());
    (options.combine, options.scatter) = (combine, scatter);
    change(&mut options);
    let mut fleet = Fleet::start(options).unwrap();
    fleet.wait_ready(Duration::from_secs(60)).unwrap();
    Tested { fleet, _dir: dir, _turn: turn }
}

/// A question of the eval file by its id.
pub(crate) fn question(id: &str) -> Question {
    let all = questions::read(&workspace().join("e2e/eval/questions.jsonl.gz")).unwrap();
    all.into_iter().find(|question| question.id == id).unwrap()
}

/// A prompt of many documents, the question's own among them: long enough to be caught in the middle.
pub(crate) fn long(id: &str, documents: usize) -> Question {
    let all = questions::read(&workspace().join("e2e/eval/questions.jsonl.gz")).unwrap();
    let mut asked = question(id);
    let others = all.into_iter().filter(|other| other.id != asked.id).flat_map(|other| other.documents);
    let own = std::mem::take(&mut asked.documents);
    asked.documents = others.take(documents).collect();
    asked.documents.extend(own);
    asked
}

/// The sum of a metric over all label sets; 0 where the process does not answer.
pub(crate) fn metric(address: &str, name: &str) -> f64 {
    Client::new(address, "", "").metric(name)
}

/// Waits until `holds`, and fails after a minute: machines of tests are slow at times.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Waits until all owners of slots know who holds the tuples of `segments` segments that one answer needed: what is built
/// goes to the tiers, and from there to the index, behind that answer.
pub(crate) fn wait_for_index(tested: &Tested, segments: u32) {
    let topology = tested.fleet.topology();
    let sum = |name: &str, role: Option<AgentRole>| -> f64 {
        let agents = topology.agents.iter().filter(|agent| role.is_none_or(|role| agent.role == role));
        agents.map(|agent| metric(tested.fleet.agent_http(agent.id.as_str()).unwrap(), name)).sum()
    };
    // The agent that answered holds all of them, and workers what they built.
    let holders = f64::from(segments) + sum("hypic_agent_scatter_built_total", Some(AgentRole::Scatter));
    // Every slot has two owners, where there are as many combine agents.
    let combine = topology.agents.iter().filter(|agent| agent.role == AgentRole::Combine).count();
    let claims = holders * combine.min(2) as f64;
    wait_for("the tuples in the index", || sum("hypic_agent_lookup_claims", None) >= claims);
}

/// Waits until a process that was told to end has ended, without an error.
pub(crate) fn ends_well(tested: &mut Tested, name: &str) {
    let status = tested.fleet.wait_end(name, Duration::from_secs(30)).unwrap();
    assert!(status.success(), "{name}: {status}: {}", tested.fleet.log(name).unwrap());
}

/// Sends a signal to a process of the fleet.
pub(crate) fn signal(tested: &Tested, name: &str, signal: &str) {
    let pid = tested.fleet.pids()[name].to_string();
    assert!(
        std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success()
    );
}
