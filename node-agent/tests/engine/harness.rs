//! Models, engines, orders and answers for tests.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use flate2::read::GzDecoder;
use hypic_compose::Ablation;
use hypic_domain::flow::{
    ColdReason, DrawnToken, Mode, Order, Origin, Piece, ReadyState, Request, SegmentOutcome,
    SegmentedRequest, TokenEvent,
};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::model::ModelSpec;
use hypic_domain::prompt::{Chat, Message, Prompt, Role, TextPart};
use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::serving::ModelFile;
use hypic_domain::tier::Tier;
use hypic_domain::tuple::TupleFormat;
use hypic_domain::unit::{Bytes, Tokens};
use hypic_kernels::cpu::CpuDevice;
use hypic_models::model::Model;
use hypic_models::random::{RandomSpec, write};
use hypic_node_agent::engine::{
    BuiltTuple, Engine, EngineConfig, EngineError, Outlets, Segment, TokenStream, Worker,
};
use hypic_segment::{Clock, Segmenter};
use hypic_store::{Observer, StoreEvent, StoredTuple};

pub(crate) const IDENTITY: Identity = Identity([7; 32]);

/// A model on a device that fills what it hands out with NaN.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) device: Arc<CpuDevice>,
    pub(crate) model: Arc<dyn Model<CpuDevice>>,
}

impl Fixture {
    fn load(dir: &Path) -> Self {
        let device = Arc::new(CpuDevice::poisoned(2).unwrap());
        let model = hypic_models::load(dir, &*device, "test".into()).unwrap().model;
        Self { device, model: model.into() }
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    pub(crate) fn config(&self) -> EngineConfig {
        EngineConfig {
            identity: IDENTITY,
            seam: 8,
            format: TupleFormat::EXACT,
            rows: 512,
            slots: 16,
            builds: 4,
            queue: 1024,
            page_tokens: 32,
            memory: Bytes(256 << 20),
            weights: Bytes(0),
            snapshots: Bytes(8 << 20),
            bodies: Bytes(0),
            ablation: Ablation::None,
        }
    }

    /// A further device with the model, or with one that takes its place.
    pub(crate) fn worker(&self, model: Option<Arc<dyn Model<CpuDevice>>>) -> Worker<CpuDevice> {
        let device = Arc::new(CpuDevice::poisoned(1).unwrap());
        let model = model.unwrap_or_else(|| Arc::clone(&self.model));
        Worker { device, model, patience: Duration::from_secs(60) }
    }

    /// An engine with some settings changed, and the tuples that it builds.
    pub(crate) fn engine(&self, change: impl FnOnce(&mut EngineConfig)) -> Agent {
        self.engine_with(Vec::new(), change)
    }

    /// The same with further devices.
    pub(crate) fn engine_with(
        &self,
        workers: Vec<Worker<CpuDevice>>,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Agent {
        let mut config = self.config();
        change(&mut config);
        let tuples = Tuples::default();
        let built = tuples.clone();
        let publish = Box::new(move |done: BuiltTuple| built.put(done.tuple));
        let kept = Arc::new(AtomicI64::new(0));
        let bodies = Arc::new(AtomicI64::new(0));
        let outlets = Outlets { publish, snapshots: counting(&kept), bodies: counting(&bodies) };
        let engine = Engine::start(self.device.clone(), self.model.clone(), workers, config, outlets);
        Agent { engine: engine.unwrap(), tuples, kept, bodies }
    }
}

/// Counts what was told of and not taken back.
fn counting(held: &Arc<AtomicI64>) -> Observer {
    let held = Arc::clone(held);
    Box::new(move |event| {
        let change = if matches!(event, StoreEvent::Added { .. }) { 1 } else { -1 };
        held.fetch_add(change, Ordering::Relaxed);
    })
}

/// A segment as it is ordered to be built.
pub(crate) fn to_build((key, ids): (SegmentKey, Vec<u32>)) -> Segment {
    Segment { key, scope: Scope::PUBLIC, ids, publish: true }
}

pub(crate) fn tiny_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/models/hypic-tiny")
}

/// The trained small model.
pub(crate) fn tiny() -> &'static Fixture {
    static TINY: OnceLock<Fixture> = OnceLock::new();
    TINY.get_or_init(|| Fixture::load(&tiny_dir()))
}

/// A random model with half lives of 8 to 8192 tokens.
pub(crate) fn random() -> &'static Fixture {
    static RANDOM: OnceLock<Fixture> = OnceLock::new();
    RANDOM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &RandomSpec::default()).unwrap();
        Fixture::load(dir.path())
    })
}

/// Numbers that look random and are the same every time.
pub(crate) struct Draw(pub u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn ids(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| (self.next() % vocab as u64) as u32).collect()
    }
}

pub(crate) fn live(ids: Vec<u32>) -> Piece {
    Piece { ids, origin: Origin::Query, key: None }
}

pub(crate) fn segment(ids: Vec<u32>) -> Piece {
    let key = SegmentKey::derive(&IDENTITY, &Scope::PUBLIC, &ids);
    Piece { ids, origin: Origin::Part, key: Some(key) }
}

/// A live head, segments of the given lengths, and a live query.
pub(crate) fn random_pieces(
    seed: u64,
    vocab: usize,
    head: usize,
    segments: &[usize],
    query: usize,
) -> Vec<Piece> {
    let mut draw = Draw(seed);
    let mut pieces = vec![live(draw.ids(head, vocab))];
    pieces.extend(segments.iter().map(|len| segment(draw.ids(*len, vocab))));
    pieces.push(live(draw.ids(query, vocab)));
    pieces
}

pub(crate) fn greedy(max_tokens: u32) -> Sampling {
    Sampling { temperature: 0.0, max_tokens: Tokens(max_tokens), ..Sampling::default() }
}

pub(crate) fn order(pieces: Vec<Piece>, mode: Mode, sampling: Sampling) -> Order {
    Order {
        id: "test".into(),
        tenant: "test".into(),
        scope: Scope::PUBLIC,
        mode,
        sources: vec![None; pieces.len()],
        pieces,
        boundaries: Vec::new(),
        snapshot: Tokens(0),
        choices: vec![sampling],
        deadline: None,
        answered: Vec::new(),
        measure_gap: false,
    }
}

/// Boundaries behind every piece but the last.
pub(crate) fn with_boundaries(mut order: Order) -> Order {
    let mut ids = Vec::new();
    let inner = order.pieces.len() - 1;
    for piece in &order.pieces[..inner] {
        ids.extend_from_slice(&piece.ids);
        let key = SegmentKey::derive_snapshot(&IDENTITY, &order.scope, &ids, "exact");
        order.boundaries.push((Tokens(ids.len() as u32), key));
    }
    order
}

/// Tuples by key, as a store would keep them.
#[derive(Clone, Default)]
pub(crate) struct Tuples(Arc<Mutex<HashMap<SegmentKey, StoredTuple>>>);

impl Tuples {
    fn put(&self, tuple: StoredTuple) {
        self.0.lock().unwrap().insert(*tuple.key(), tuple);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(crate) fn find(&self, key: &SegmentKey) -> Option<StoredTuple> {
        self.0.lock().unwrap().get(key).cloned()
    }
}

/// An engine and its tuples.
pub(crate) struct Agent {
    pub(crate) engine: Engine,
    pub(crate) tuples: Tuples,
    /// Snapshots told of and not taken back.
    pub(crate) kept: Arc<AtomicI64>,
    /// Tuples that were told to stay on the device and not to be gone.
    pub(crate) bodies: Arc<AtomicI64>,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ready: ReadyState,
    /// By choice.
    pub(crate) tokens: Vec<Vec<DrawnToken>>,
    /// By choice.
    pub(crate) finished: Vec<Option<FinishReason>>,
}

impl Answer {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens[0].iter().map(|token| token.id).collect()
    }

    /// Log probabilities of the whole vocabulary at one place of the first choice, by id.
    pub(crate) fn row(&self, place: usize) -> Vec<f32> {
        let mut row = self.tokens[0][place].top.clone();
        row.sort_unstable_by_key(|(id, _)| *id);
        row.into_iter().map(|(_, logprob)| logprob).collect()
    }

    /// Bits of all probabilities told.
    pub(crate) fn bits(&self) -> Vec<Vec<(u32, u32)>> {
        let bits = |token: &DrawnToken| token.top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
        self.tokens.iter().flatten().map(bits).collect()
    }
}

impl Agent {
    /// Begins an answer: what `tuples` has is a hit, the rest is built.
    pub(crate) fn begin(&self, order: Order, tuples: &Tuples) -> TokenStream {
        let (feed, stream) = self.engine.generate(order);
        for (piece, head) in feed.wanted() {
            match tuples.find(&head.key) {
                Some(tuple) => {
                    feed.tuple(piece, &tuple, SegmentOutcome::Hit { tier: Tier::Device }, None).unwrap();
                }
                None => feed.lost(piece, ColdReason::Unknown),
            }
        }
        stream
    }

    /// A whole answer, with the tuples that were built here before; then waits for those that were built for it.
    pub(crate) fn ask(&self, order: Order) -> Result<Answer, EngineError> {
        let answer = finish(self.begin(order, &self.tuples));
        self.wait_for_builds();
        answer
    }

    /// Waits until what was built is kept: an answer does not.
    pub(crate) fn wait_for_builds(&self) {
        while self.engine.load().builds > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until nothing runs, and asserts that everything is free.
    pub(crate) fn assert_all_free(&self) {
        for _ in 0..2000 {
            let load = self.engine.load();
            if load.running + load.queued + load.builds == 0 && load.slots_free == load.slots_total {
                let held_by_snapshots = if load.snapshots == 0 { 0 } else { load.pages_total };
                assert!(load.pages_free + held_by_snapshots >= load.pages_total, "{load:?}");
                assert_eq!(load.build_slots_free, self.engine.config().builds);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("still busy: {:?}", self.engine.load());
    }
}

/// Reads a stream to its end.
pub(crate) fn finish(mut stream: TokenStream) -> Result<Answer, EngineError> {
    let mut answer = Answer::default();
    while let Some(event) = stream.blocking_next() {
        let place = |answer: &mut Answer, choice: u32| {
            let len = answer.tokens.len().max(choice as usize + 1);
            answer.tokens.resize(len, Vec::new());
            answer.finished.resize(len, None);
            choice as usize
        };
        match event? {
            TokenEvent::Ready(ready) => answer.ready = ready,
            TokenEvent::Token(token) => {
                let choice = place(&mut answer, token.choice);
                answer.tokens[choice].push(token);
            }
            TokenEvent::Finished { choice, reason } => {
                let choice = place(&mut answer, choice);
                assert_eq!(answer.finished[choice].replace(reason), None);
            }
        }
    }
    Ok(answer)
}

/// A row of the questions file.
pub(crate) struct Question {
    pub(crate) id: String,
    pub(crate) cell: String,
    pub(crate) pieces: Vec<Piece>,
    /// First token of the answer.
    pub(crate) answer: u32,
}

/// The demo's questions, cut as the router cuts them.
pub(crate) fn questions() -> &'static [Question] {
    static QUESTIONS: OnceLock<Vec<Question>> = OnceLock::new();
    QUESTIONS.get_or_init(|| {
        let file: ModelFile = serde_json::from_value(serde_json::json!({
            "name": "tiny", "path": tiny_dir(), "segment_min": 16
        }))
        .unwrap();
        let clock: Clock = Arc::new(|| SystemTime::UNIX_EPOCH);
        let segmenter = Segmenter::load(&tiny_dir(), &file, &clock).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/eval/questions.jsonl.gz");
        let lines = BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines();
        lines.map(|line| question(&segmenter, &serde_json::from_str(&line.unwrap()).unwrap())).collect()
    })
}

fn question(segmenter: &Segmenter, row: &serde_json::Value) -> Question {
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    let part = |text: &str| TextPart { text: text.to_owned(), marked: false };
    let message = |role, content| Message {
        role,
        content,
        tool_calls: Vec::new(),
        tool_call_id: None,
        name: None,
        reasoning: None,
    };
    let documents = row["documents"].as_array().unwrap();
    let mut parts: Vec<TextPart> = documents.iter().map(|text| part(text.as_str().unwrap())).collect();
    parts.push(part(&text("question")));
    let messages = vec![message(Role::System, vec![part(&text("system"))]), message(Role::User, parts)];
    let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
    let cut = |prompt| -> SegmentedRequest {
        let request = Request {
            id: "test".into(),
            tenant: "test".into(),
            scope: Scope::PUBLIC,
            model: "tiny".into(),
            mode: Mode::Pic,
            prompt,
            sampling: Sampling::default(),
            deadline: None,
        };
        segmenter.segment(request, &IDENTITY).unwrap()
    };
    let pieces = cut(Prompt::Chat(chat)).pieces;
    assert_eq!(pieces.iter().filter(|piece| piece.key.is_some()).count(), documents.len());
    let answer = cut(Prompt::Text(text("answer"))).pieces.iter().flat_map(|piece| piece.ids.clone()).next();
    Question {
        id: text("id"),
        cell: format!("{}/{}", text("layout"), text("task")),
        pieces,
        answer: answer.unwrap(),
    }
}
