//! Question files: one JSON object a line, plain or gzipped, as in `e2e/eval/questions.jsonl.gz`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde::Deserialize;

/// One question over documents.
#[derive(Clone, Debug, Deserialize)]
pub struct Question {
    /// Unique.
    pub id: String,
    /// What is asked for: `count`, `last`, `coref`.
    pub task: String,
    /// How many documents of what length.
    pub layout: String,
    /// The system text.
    pub system: String,
    /// Content parts, in the order in which the answer holds.
    pub documents: Vec<String>,
    /// The last content part.
    pub question: String,
    /// What must come out.
    pub answer: String,
}

impl Question {
    /// The same question with its documents in another order.
    pub fn shuffled(&self, random: &mut StdRng) -> Self {
        let mut other = self.clone();
        for _ in 0..16 {
            other.documents.shuffle(random);
            if other.documents != self.documents {
                break;
            }
        }
        other
    }

    /// The same question over documents that nobody has sent before: as many words of each, drawn from all.
    pub fn over_new_documents(&self, random: &mut StdRng) -> Self {
        let words: Vec<&str> =
            self.documents.iter().flat_map(|document| document.split_whitespace()).collect();
        let draw = |document: &String| {
            let drawn = document.split_whitespace().filter_map(|_| words.choose(random).copied());
            drawn.collect::<Vec<_>>().join(" ")
        };
        Self { documents: self.documents.iter().map(draw).collect(), ..self.clone() }
    }
}

/// Reads a question file.
pub fn read(path: &Path) -> Result<Vec<Question>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let reader: Box<dyn Read> = if path.extension().is_some_and(|end| end == "gz") {
        Box::new(flate2::read::GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut questions = Vec::new();
    for (number, line) in BufReader::new(reader).lines().enumerate() {
        let line = line.with_context(|| format!("read {}", path.display()))?;
        if line.trim().is_empty() {
            continue;
        }
        let question = serde_json::from_str(&line)
            .with_context(|| format!("{} line {}: not a question", path.display(), number + 1))?;
        questions.push(question);
    }
    if questions.is_empty() {
        bail!("{} has no questions", path.display());
    }
    Ok(questions)
}

/// Takes `count` questions, evenly over layout × task.
pub fn evenly(questions: &[Question], count: usize) -> Vec<Question> {
    let mut cells: BTreeMap<(&str, &str), Vec<&Question>> = BTreeMap::new();
    for question in questions {
        cells.entry((&question.layout, &question.task)).or_default().push(question);
    }
    let longest = cells.values().map(Vec::len).max().unwrap_or(0);
    let turns = (0..longest).flat_map(|turn| cells.values().filter_map(move |cell| cell.get(turn)));
    turns.take(count).map(|question| (*question).clone()).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn question(layout: &str, task: &str, number: usize) -> Question {
        Question {
            id: format!("{layout}-{task}-{number}"),
            task: task.to_owned(),
            layout: layout.to_owned(),
            system: String::new(),
            documents: Vec::new(),
            question: String::new(),
            answer: String::new(),
        }
    }

    #[test]
    fn new_documents_are_new_and_as_long() {
        let documents = vec!["one two three four five six".to_owned(), "seven eight".to_owned()];
        let asked = Question { documents, ..question("a", "x", 0) };
        let mut random = StdRng::seed_from_u64(1);
        let (first, second) = (asked.over_new_documents(&mut random), asked.over_new_documents(&mut random));
        assert!(first.documents[0] != asked.documents[0] && first.documents[0] != second.documents[0]);
        let lengths: Vec<usize> =
            first.documents.iter().map(|text| text.split_whitespace().count()).collect();
        assert_eq!(lengths, [6, 2]);
    }

    #[test]
    fn every_cell_gives_its_share() {
        let mut all = Vec::new();
        for number in 0..5 {
            for layout in ["a", "b"] {
                for task in ["x", "y", "z"] {
                    all.push(question(layout, task, number));
                }
            }
        }
        let taken = evenly(&all, 12);
        for task in ["x", "y", "z"] {
            assert_eq!(taken.iter().filter(|question| question.task == task).count(), 4);
        }
    }
}
