//! What the demo shows of a fleet, wherever it runs: ten questions in every mode, and the table of all modes.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use hypic_domain::flow::Mode;

use crate::client::Client;
use crate::fleet::{key_of, show_key_of};
use crate::pass;
use crate::questions::{self, Question};
use crate::report::{Report, machine};

/// Answers of `pic` that may be wrong where `recompute` is right, in all.
const PIC_BEHIND: usize = 2;

/// Questions between two lines, where no progress line can be drawn over.
const LINE_EVERY: usize = 24;

/// A fleet that knows the keys of [`crate::fleet::tenants`].
pub struct Shown<'a> {
    /// The model's name.
    pub model: &'a str,
    /// A client that sends a key.
    pub client: &'a dyn Fn(&str) -> Client,
    /// Takes a line for people.
    pub step: &'a dyn Fn(&str),
}

impl Shown<'_> {
    /// Asks ten questions, then `count` for the table, which is printed.
    ///
    /// # Errors
    /// A question that is not answered.
    pub fn ask(&self, all: &[Question], count: usize) -> Result<Report> {
        self.ten(all)?;
        let report = self.table(&questions::evenly(all, count))?;
        println!("\n{}", report.table(&Mode::ALL.map(Mode::name)));
        println!("cold: documents shuffled, nothing cached. shuffled: same documents in another order.");
        Ok(report)
    }

    /// Ten questions, at least three of each task, in every mode.
    fn ten(&self, all: &[Question]) -> Result<()> {
        let ten = questions::evenly(all, 10);
        (self.step)(&format!("{} questions in every mode", ten.len()));
        for question in &ten {
            println!("\n{}: {}  (expected: {})", question.id, question.question, question.answer);
            for mode in Mode::ALL {
                let answer = (self.client)(&show_key_of(mode)).ask(question, pass::MAX_TOKENS, false)?;
                let segments = &answer.hypic["segments"];
                let mark = if answer.text.trim() == question.answer.trim() { "right" } else { "wrong" };
                println!(
                    "  {:<10} TTFT {:>7.1} ms   segments hit {:>2} built {:>2}   {:<12} {mark}",
                    mode.name(),
                    answer.ttft.as_secs_f64() * 1e3,
                    segments["hit"].as_u64().unwrap_or(0) + segments["fetched"].as_u64().unwrap_or(0),
                    segments["built"].as_u64().unwrap_or(0),
                    answer.text.trim(),
                );
            }
        }
        println!();
        Ok(())
    }

    fn table(&self, asked: &[Question]) -> Result<Report> {
        let mut report = Report {
            machine: machine(),
            model: self.model.to_owned(),
            questions: asked.len(),
            ..Report::default()
        };
        for mode in Mode::ALL {
            let name = mode.name();
            let mut progress = |pass: &str, done: usize| {
                if std::io::stdout().is_terminal() {
                    print!("\r           {name}: {pass} {done}/{}   ", asked.len());
                    // A progress line that cannot be shown is no reason to stop.
                    let _ = std::io::stdout().flush();
                } else if done.is_multiple_of(LINE_EVERY) && done < asked.len() {
                    (self.step)(&format!("{name}: {pass} {done}/{}", asked.len()));
                }
            };
            let gap = !matches!(mode, Mode::Recompute | Mode::Prefix);
            let (row, texts) = pass::run_mode(&(self.client)(&key_of(mode)), asked, gap, &mut progress)?;
            if std::io::stdout().is_terminal() {
                print!("\r");
            }
            (self.step)(&format!("{name}: {} of {} right", row.correct, asked.len()));
            report.modes.insert(name.to_owned(), row);
            report.answers.insert(name.to_owned(), texts);
        }
        Ok(report)
    }
}

/// What is wrong when `pic` answers too much worse than `recompute`.
pub fn pic_fault(report: &Report) -> Option<String> {
    let right = |mode: Mode| report.modes.get(mode.name()).map_or(0, |row| row.correct);
    let (pic, recompute) = (right(Mode::Pic), right(Mode::Recompute));
    (pic + PIC_BEHIND < recompute).then(|| {
        format!("pic has {pic} right answers and recompute {recompute}: more than {PIC_BEHIND} under it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ModeReport;

    #[test]
    fn pic_may_be_two_answers_under_recompute() {
        let report = |pic| {
            let row = |correct| ModeReport { correct, ..ModeReport::default() };
            let modes = [("pic".to_owned(), row(pic)), ("recompute".to_owned(), row(70))].into();
            Report { modes, ..Report::default() }
        };
        assert_eq!(pic_fault(&report(68)), None);
        assert!(pic_fault(&report(67)).is_some());
    }
}
