//! What a run found: the table people read and the JSON that tools read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Results of a run, as `--report` writes them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Cores and processor.
    pub machine: String,
    /// The model's name.
    pub model: String,
    /// How many questions were scored.
    pub questions: usize,
    /// Per mode.
    pub modes: BTreeMap<String, ModeReport>,
    /// Per mode and question: the answer.
    pub answers: BTreeMap<String, BTreeMap<String, String>>,
    /// Scatter workers under cold traffic, on a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scatter: Option<Scatter>,
}

/// How many scatter workers were ready, under traffic of new documents.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scatter {
    /// Before it.
    pub start: u64,
    /// The most during it.
    pub peak: u64,
    /// Once the pool was done with it.
    pub end: u64,
}

/// One mode's row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeReport {
    /// Share of right answers of pass 2.
    pub accuracy: f64,
    /// Right answers of pass 2.
    pub correct: usize,
    /// Of each task: right answers of pass 2, and questions.
    pub tasks: BTreeMap<String, (usize, usize)>,
    /// Median time to the first token, of both passes.
    pub ttft_ms: Ttft,
    /// Σ(exact + hit) / Σ prompt tokens of pass 2.
    pub cached_share: f64,
    /// Mean KL(recompute ‖ mode) of the first answer token, in nats.
    pub kl: Option<f64>,
}

/// Medians of both passes, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Ttft {
    /// Pass 1: nothing cached yet.
    pub cold: f64,
    /// Pass 2: the documents in another order.
    pub shuffled: f64,
}

impl Report {
    /// The table, modes in the given order.
    pub fn table(&self, order: &[&str]) -> String {
        let mut text = String::new();
        let tasks: BTreeSet<&String> = self.modes.values().flat_map(|mode| mode.tasks.keys()).collect();
        let mut head = format!("{:<11}{:>10}{:>10}", "mode", "correct", "accuracy");
        for task in &tasks {
            let _ = write!(head, "{task:>8}");
        }
        let _ = write!(head, "{:>14}{:>13}{:>14}{:>7}", "TTFT cold ms", "shuffled ms", "cached_share", "KL");
        let rule = "-".repeat(head.chars().count());
        let _ = writeln!(text, "{head}\n{rule}");
        for name in order {
            let Some(mode) = self.modes.get(*name) else { continue };
            let kl = mode.kl.map_or_else(|| "-".to_owned(), |kl| format!("{kl:.3}"));
            let correct = format!("{}/{}", mode.correct, self.questions);
            let _ = write!(text, "{name:<11}{correct:>10}{:>10.3}", mode.accuracy);
            for task in &tasks {
                let (right, of) = mode.tasks.get(*task).copied().unwrap_or_default();
                let _ = write!(text, "{:>8}", format!("{right}/{of}"));
            }
            let Ttft { cold, shuffled } = mode.ttft_ms;
            let _ = writeln!(text, "{cold:>14.1}{shuffled:>13.1}{:>14.3}{kl:>7}", mode.cached_share);
        }
        text
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("write the report as JSON")?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }
}

/// Cores and processor, for reports.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{cores} cores, {}", model.map_or("unknown processor", |(_, name)| name))
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
