//! The passes of the demo: cold, shuffled, gap.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::client::{Answer, Client};
use crate::questions::Question;
use crate::report::{ModeReport, Ttft, median};

/// Longest answer asked for. hypic-tiny answers in one word.
pub const MAX_TOKENS: u32 = 12;

/// One mode over all questions: pass 1 sends the documents shuffled and fills the cache, pass 2 sends the
/// file's order and is scored, pass 3 (only with `gap`) measures the distance to recompute, untimed.
///
/// `progress` is told after every request.
pub fn run_mode(
    client: &Client,
    questions: &[Question],
    gap: bool,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<(ModeReport, BTreeMap<String, String>)> {
    let mut random = StdRng::seed_from_u64(17);
    let ask = |question: &Question, measure: bool| -> Result<Answer> {
        client.ask(question, MAX_TOKENS, measure).with_context(|| format!("question {}", question.id))
    };
    let mut cold = Vec::new();
    for (done, question) in questions.iter().enumerate() {
        cold.push(ask(&question.shuffled(&mut random), false)?.ttft.as_secs_f64() * 1e3);
        progress("cold", done + 1);
    }
    let (mut shuffled, mut texts, mut tasks) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let (mut correct, mut cached, mut prompt) = (0, 0, 0);
    for (done, question) in questions.iter().enumerate() {
        let answer = ask(question, false)?;
        shuffled.push(answer.ttft.as_secs_f64() * 1e3);
        let right = usize::from(answer.text.trim() == question.answer.trim());
        correct += right;
        let task = tasks.entry(question.task.clone()).or_insert((0, 0));
        *task = (task.0 + right, task.1 + 1);
        cached += answer.cached();
        prompt += answer.prompt_tokens();
        texts.insert(question.id.clone(), answer.text);
        progress("shuffled", done + 1);
    }
    let mut gaps = Vec::new();
    if gap {
        for (done, question) in questions.iter().enumerate() {
            gaps.extend(ask(question, true)?.hypic["gap"].as_f64());
            progress("gap", done + 1);
        }
    }
    let report = ModeReport {
        accuracy: correct as f64 / questions.len() as f64,
        correct,
        tasks,
        ttft_ms: Ttft { cold: median(&cold), shuffled: median(&shuffled) },
        cached_share: if prompt == 0 { 0.0 } else { cached as f64 / prompt as f64 },
        kl: (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / gaps.len() as f64),
    };
    Ok((report, texts))
}
