//! Fleets for tests, one at a time: the machine is small.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hypic_domain::serving::ModelFile;
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

/// Sends a signal to a process of the fleet.
pub(crate) fn signal(tested: &Tested, name: &str, signal: &str) {
    let pid = tested.fleet.pids()[name].to_string();
    assert!(
        std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success()
    );
}
