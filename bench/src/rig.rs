//! What benches over real processes share: a fleet in a folder of its own, and documents to ask about.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use hypic_domain::serving::ModelFile;
use hypic_e2e::fleet::{Fleet, FleetOptions};
use hypic_e2e::questions::{self, Question};

/// How long a fleet may take to start: agents calibrate, on a machine that may be busy.
const START: Duration = Duration::from_secs(180);

/// A fleet that ends with this value, and its folder after it.
pub(crate) struct Rig {
    pub(crate) fleet: Fleet,
    _dir: tempfile::TempDir,
}

/// Processes of a fleet.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Combine agents.
    #[arg(long, default_value_t = 1)]
    combine: usize,
    /// Scatter workers.
    #[arg(long, default_value_t = 0)]
    scatter: usize,
    /// Threads of each agent's kernels.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

impl FleetArgs {
    /// Starts router and agents of `model` and waits until they are ready.
    pub(crate) fn start(&self, model: ModelFile, agent_flags: Vec<String>) -> anyhow::Result<Rig> {
        let dir = tempfile::tempdir().context("make the fleet's folder")?;
        let program = std::env::current_exe().context("find this program")?;
        let binaries = program.parent().context("find this program's folder")?;
        let (combine, scatter, threads) = (self.combine, self.scatter, self.threads);
        let demo = FleetOptions::demo(dir.path(), binaries, model);
        let mut fleet = Fleet::start(FleetOptions { combine, scatter, threads, agent_flags, ..demo })
            .context("start the fleet: are router and agent built beside this program?")?;
        fleet.wait_ready(START)?;
        Ok(Rig { fleet, _dir: dir })
    }

    /// What runs, for a table's title.
    pub(crate) fn show(&self) -> String {
        format!("{} combine, {} scatter, {} threads each", self.combine, self.scatter, self.threads)
    }
}

/// A folder or file of the tree.
pub(crate) fn in_tree(path: &str) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.parent().unwrap_or(crate_folder).join(path)
}

/// Documents of the question file, each once, and a question to ask about any of them.
pub(crate) struct Library {
    frame: Question,
    documents: Vec<String>,
    taken: usize,
}

impl Library {
    /// The documents of some layouts, taken from them in turn.
    pub(crate) fn open(layouts: &[&str]) -> anyhow::Result<Self> {
        let all = questions::read(&in_tree("e2e/eval/questions.jsonl.gz"))?;
        let of = |layout: &&str| -> Vec<&String> {
            all.iter().filter(|question| question.layout == *layout).flat_map(|q| &q.documents).collect()
        };
        let shelves: Vec<Vec<&String>> = layouts.iter().map(of).collect();
        let longest = shelves.iter().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|place| shelves.iter().filter_map(move |shelf| shelf.get(place)));
        let mut known = HashSet::new();
        let documents = in_turn.filter(|text| known.insert(**text)).map(|text| (*text).clone()).collect();
        let mut frame = all.into_iter().next().context("the question file is empty")?;
        frame.documents.clear();
        Ok(Self { frame, documents, taken: 0 })
    }

    /// A question over the next `count` documents; none comes twice.
    pub(crate) fn take(&mut self, count: usize) -> anyhow::Result<Question> {
        let end = self.taken + count;
        ensure!(end <= self.documents.len(), "there are only {} documents", self.documents.len());
        let documents = self.documents[self.taken..end].to_vec();
        self.taken = end;
        Ok(Question { documents, ..self.frame.clone() })
    }
}

/// The smallest value that `share` of all values do not exceed; NaN of nothing.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&hundred, share)), [50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[3.0], 0.5), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn no_document_comes_twice() {
        let mut library = Library::open(&["6x128", "4x256"]).unwrap();
        let (first, second) = (library.take(40).unwrap(), library.take(40).unwrap());
        assert!(first.documents.iter().all(|document| !second.documents.contains(document)));
        assert!(library.take(100_000).is_err());
    }
}
