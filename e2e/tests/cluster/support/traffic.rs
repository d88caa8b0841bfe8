//! People who ask all the time, each request over a connection of its own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use hypic_e2e::client::Client;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::questions::{self, Question};
use rand::RngExt;

const WORDS: [&str; 16] = [
    "amber", "badge", "cannon", "copper", "gravel", "kernel", "lamp", "marble", "paper", "pebble", "river",
    "saddle", "table", "timber", "velvet", "wagon",
];

/// A question of the eval file that the healthy fleet answers right.
pub(crate) fn question() -> Question {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("eval/questions.jsonl.gz");
    questions::read(&file).unwrap().into_iter().find(|question| question.id == "6x128-coref-12").unwrap()
}

/// A question over documents that nobody has sent before.
pub(crate) fn new_documents() -> Question {
    let mut source = rand::rng();
    let mut document =
        || (0..60).map(|_| WORDS[source.random_range(0..WORDS.len())]).collect::<Vec<_>>().join(" ");
    Question { documents: (0..4).map(|_| document()).collect(), ..question() }
}

/// What became of one request.
#[derive(Debug)]
struct Asked {
    /// Until it was over.
    took: Duration,
    /// The answer's text.
    answer: Result<String, String>,
}

/// Asks until it is dropped or ended.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<Asked>>>,
    people: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// So many people ask `next` question of `address`, with a pause after each answer.
    pub(crate) fn start(
        address: &str,
        people: usize,
        next: impl Fn() -> Question + Send + Sync + 'static,
    ) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let next = Arc::new(next);
        let people = (0..people).map(|_| {
            let (stop, asked, next, address) =
                (stop.clone(), asked.clone(), next.clone(), address.to_owned());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let client = Client::new(&address, "none", "hypic-tiny");
                    let answer = client.ask(&next(), MAX_TOKENS, false);
                    let answer = answer.map(|answer| answer.text.trim().to_owned());
                    let answer = answer.map_err(|error| format!("{error:#}"));
                    let one = Asked { took: begun.elapsed(), answer };
                    asked.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                    sleep(Duration::from_millis(200));
                }
            })
        });
        let people = people.collect();
        Self { stop, asked, people }
    }

    /// Stops, and fails the test unless all were answered; with this text, if one is given. Gives their number.
    pub(crate) fn all_answered(self, right: Option<&str>) -> usize {
        let asked = self.end();
        let is_wrong = |one: &&Asked| match (&one.answer, right) {
            (Ok(answer), Some(right)) => answer != right,
            (Ok(_), None) => false,
            (Err(_), _) => true,
        };
        let faults: Vec<String> = asked.iter().filter(is_wrong).map(|one| format!("{one:?}")).collect();
        assert!(faults.is_empty(), "{} of {} requests: {}", faults.len(), asked.len(), faults.join("\n"));
        let longest = asked.iter().map(|one| one.took).max().unwrap_or_default();
        eprintln!("  {} requests, all answered, the longest in {:.1} s", asked.len(), longest.as_secs_f64());
        asked.len()
    }

    /// Stops, waits for the last answers, and gives all.
    fn end(mut self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        for person in self.people.drain(..) {
            person.join().unwrap();
        }
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
