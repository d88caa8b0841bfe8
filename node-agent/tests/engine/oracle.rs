//! The prototype's table: accuracy, and KL to full recompute of the first answer token, for every variant.

use std::collections::BTreeMap;
use std::path::Path;

use hypic_compose::{Ablation, gap};
use hypic_domain::flow::Mode;
use hypic_domain::sampling::Sampling;

use crate::harness::{Agent, Answer, Question, Tuples, finish, greedy, order, questions, tiny};

/// Name, seam, mode and ablation.
const VARIANTS: [(&str, u32, Mode, Ablation); 6] = [
    ("hypic_w8", 8, Mode::Pic, Ablation::None),
    ("last_w8", 8, Mode::Last, Ablation::None),
    ("coldconv_w8", 8, Mode::Pic, Ablation::ColdConvolution),
    ("double_w8", 8, Mode::Pic, Ablation::DoubleSeam),
    ("hypic_w0", 0, Mode::Pic, Ablation::None),
    ("naive_add", 0, Mode::Add, Ablation::None),
];

#[derive(Default)]
struct Cell {
    questions: usize,
    /// By variant: right answers, and the sum of the divergences.
    sums: BTreeMap<&'static str, (usize, f64)>,
}

/// First answer tokens of all `questions`, with the whole distribution.
fn first_tokens(agent: &Agent, tuples: &Tuples, questions: &[Question], mode: Mode) -> Vec<Answer> {
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(1) };
    let begin =
        |question: &Question| agent.begin(order(question.pieces.clone(), mode, everything.clone()), tuples);
    let streams: Vec<_> = questions.iter().map(begin).collect();
    streams.into_iter().map(|stream| finish(stream).unwrap()).collect()
}

#[test]
fn every_variant_is_as_right_and_as_wrong_as_the_prototype() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/eval/oracle.json");
    let oracle: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let agents = VARIANTS.map(|(_, seam, _, ablation)| {
        tiny().engine(|config| (config.seam, config.ablation, config.builds) = (seam, ablation, 8))
    });
    let mut cells: BTreeMap<&str, Cell> = BTreeMap::new();
    for questions in questions().chunks(24) {
        let references = first_tokens(&agents[0], &Tuples::default(), questions, Mode::Recompute);
        for (place, (name, seam, mode, ablation)) in VARIANTS.into_iter().enumerate() {
            // Tuples depend on the seam and on what is recorded, not on how they are applied.
            let builder = VARIANTS.iter().position(|(_, other, _, how)| {
                *other == seam && (*how == Ablation::DoubleSeam) == (ablation == Ablation::DoubleSeam)
            });
            let tuples = &agents[builder.unwrap()].tuples;
            let answers = first_tokens(&agents[place], tuples, questions, mode);
            for ((question, answer), reference) in questions.iter().zip(answers).zip(&references) {
                let cell = cells.entry(&question.cell).or_default();
                let sums = cell.sums.entry(name).or_default();
                sums.0 += usize::from(answer.ids()[0] == question.answer);
                sums.1 += gap::kl(&reference.row(0), &answer.row(0));
            }
        }
        agents.iter().for_each(|agent| agent.tuples.clear());
        for (question, reference) in questions.iter().zip(&references) {
            let cell = cells.entry(&question.cell).or_default();
            cell.questions += 1;
            cell.sums.entry("full").or_default().0 += usize::from(reference.ids()[0] == question.answer);
        }
    }
    let mut faults = Vec::new();
    for (name, cell) in &cells {
        let count = cell.questions as f64;
        assert_eq!(oracle[name]["n"], cell.questions);
        for (variant, (right, divergence)) in &cell.sums {
            let expected = oracle[name][variant].as_f64().unwrap();
            if (*right as f64 - expected * count).abs() > 1.01 {
                faults.push(format!("{name} {variant}: {right} of {count} right, {expected} expected"));
            }
            let Some(expected) = oracle[name][format!("{variant}_kl")].as_f64() else { continue };
            let (kl, bound) = (divergence / count, if expected < 1e-3 { 2e-5 } else { 0.1 * expected });
            if (kl - expected).abs() > bound {
                faults.push(format!("{name} {variant}: a divergence of {kl:.5}, {expected:.5} expected"));
            }
        }
    }
    assert_eq!(cells.len(), 12);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
