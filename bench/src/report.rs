//! Tables for people and JSON for programs.

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

/// Where the report goes.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Write the numbers as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl ReportArgs {
    /// Writes `report` if a file was asked for.
    pub(crate) fn write(&self, report: &impl Serialize) -> anyhow::Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let text = serde_json::to_string_pretty(report).context("encode the report")?;
        std::fs::write(path, text + "\n").with_context(|| format!("write \"{}\"", path.display()))
    }
}

/// Prints rows under a head, columns aligned to the right but for the first.
pub(crate) fn print_table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("| {} |", padded.collect::<Vec<_>>().join(" | "));
    };
    println!("\n{title}\n");
    line(head.to_vec());
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(rule.iter().map(String::as_str).collect());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}
