//! What the engine says about itself.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use hypic_domain::flow::Origin;
use hypic_domain::flow::{Mode, Order, Piece, TokenEvent};
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::sampling::Sampling;
use hypic_domain::unit::{Bytes, Millis, Tokens};

use super::{BuildEvent, Engine, EngineError, Segment};

/// Gauges and counters, as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences that hold a slot.
    pub running: usize,
    /// Sequences that wait for one.
    pub queued: usize,
    /// Builds that run or wait.
    pub builds: usize,
    /// Rows that everybody here still needs before the next token.
    pub rows_ahead: u64,
    /// Free state slots of sequences.
    pub slots_free: usize,
    /// State slots of sequences.
    pub slots_total: usize,
    /// Free state slots of builds.
    pub build_slots_free: usize,
    /// Free KV pages.
    pub pages_free: usize,
    /// KV pages.
    pub pages_total: usize,
    /// Snapshots kept.
    pub snapshots: usize,
    /// Tuples that stay on the device.
    pub bodies: usize,
    /// Bytes of them and of those in use, beside their keys and values.
    pub body_bytes: Bytes,
    /// Counters since the start.
    pub counters: Counters,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps.
    pub steps: u64,
    /// Rows of answers.
    pub rows_decoded: u64,
    /// Rows of prompts computed in context.
    pub rows_live: u64,
    /// Rows of composed prompts: seams and what is live beside them.
    pub rows_composed: u64,
    /// Rows of builds.
    pub rows_built: u64,
    /// Tokens drawn.
    pub drawn: u64,
    /// Tuples built.
    pub built: u64,
    /// Those of them that a further device of this agent built.
    pub built_by_workers: u64,
    /// Builds that a further device began and did not end: they were done here.
    pub builds_taken_back: u64,
    /// Linear heads of built tuples.
    pub heads: u64,
    /// Those of them that store a `T`.
    pub heads_live: u64,
    /// Sequences that lost their memory and are computed again.
    pub preempted: u64,
    /// Sequences that nobody reads any more, or whose deadline passed.
    pub cancelled: u64,
    /// Snapshots kept.
    pub snapshots_saved: u64,
    /// Sequences that began at a snapshot.
    pub snapshots_used: u64,
}

impl Counters {
    /// Counts the heads of a layer by which of them store a `T`.
    pub(super) fn count_heads(&mut self, (live, heads): (usize, usize)) {
        self.heads += heads as u64;
        self.heads_live += live as u64;
    }
}

impl Load {
    /// Share of built tuples' heads that store a `T`; `None` before the first build.
    pub fn live_share(&self) -> Option<f64> {
        let Counters { heads, heads_live, .. } = self.counters;
        (heads > 0).then(|| heads_live as f64 / heads as f64)
    }
}

/// Measured times; empty before anything is measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Milliseconds to prefill so many rows.
    pub prefill: Vec<(Tokens, Millis)>,
    /// Milliseconds of a step that decodes so many streams.
    pub decode: Vec<(Tokens, Millis)>,
    /// Tokens of one cold segment after the other in a second; 0 where the context is too short for one.
    pub build_tokens_per_second: f64,
    /// Share of the built segment's linear heads that store a `T`.
    pub live_share: f64,
}

impl Calibration {
    /// Predicted time to prefill so many rows: the measured points, joined by lines and prolonged. Fewer rows than were timed
    /// take their share of the least at least: a machine that was busy for a longer prompt would say that they take no time.
    pub fn prefill_of(&self, rows: usize) -> Millis {
        let rows = rows as f64;
        let point = |(tokens, millis): &(Tokens, Millis)| (f64::from(tokens.0), millis.0);
        let points: Vec<(f64, f64)> = self.prefill.iter().map(point).collect();
        match points[..] {
            [] => Millis(rows),
            [(at, ms)] => Millis(ms * rows / at.max(1.0)),
            _ => {
                let behind = points.partition_point(|(at, _)| *at < rows).clamp(1, points.len() - 1);
                let ((x0, y0), (x1, y1)) = (points[behind - 1], points[behind]);
                let share = if rows < x0 { y0 * rows / x0 } else { 0.0 };
                Millis((y0 + (y1 - y0) * (rows - x0) / (x1 - x0).max(1.0)).max(share))
            }
        }
    }

    /// Predicted time of steps with so many rows of prompts and of builds in all. A row takes what one takes in a step of as
    /// many rows: many builds in one step take less than as many alone, and no machine is faster for that. What the timed
    /// build took beyond a prompt of its length goes by its tokens.
    pub(super) fn span_of(&self, prompts: u64, builds: u64, steps: u64) -> Millis {
        let rows = prompts + builds;
        if rows == 0 {
            return Millis(0.0);
        }
        let in_a_step_of = |rows: u64| self.prefill_of(rows as usize).0 / rows as f64;
        let row = in_a_step_of(rows.div_ceil(steps.max(1)));
        let timed = in_a_step_of(SEGMENT_TOKENS.into());
        let built =
            if self.build_tokens_per_second > 0.0 { 1e3 / self.build_tokens_per_second } else { timed };
        let (share, more) = ((built / timed).min(1.0), (built - timed).max(0.0));
        Millis(row * (prompts as f64 + share * builds as f64) + more * builds as f64)
    }
}

/// Prompts that are timed.
const PREFILL_ROWS: [u32; 3] = [64, 256, 1024];
/// Tokens per timed answer.
const DECODE_TOKENS: u32 = 8;
const DECODE_STREAMS: [u32; 2] = [1, 4];
/// Tokens of the timed segment: an ordinary document's.
pub const SEGMENT_TOKENS: u32 = 512;

impl Engine {
    /// The times of [`Engine::calibrate`] as they are now: they follow what is computed since, slowly, and longer ones return
    /// while nothing is. A machine that was busy when it was measured, or for a while since, does not count as slow for good.
    pub fn calibration(&self) -> Calibration {
        // A lock poisoned by a panic still holds plain numbers.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).at(Instant::now())
    }

    /// Times builds and answers of made-up tokens. It takes the engine as it is: meant for a quiet one, before
    /// it serves. Nothing of it is published.
    ///
    /// # Errors
    /// What the engine says to its prompts.
    pub async fn calibrate(&self) -> Result<Calibration, EngineError> {
        let most = self.spec().context.0.saturating_sub(DECODE_TOKENS + 1);
        let mut calibration = Calibration {
            prefill: Vec::new(),
            decode: Vec::new(),
            build_tokens_per_second: self.time_build(most.min(SEGMENT_TOKENS)).await?,
            live_share: self.load().live_share().unwrap_or(1.0),
        };
        for rows in PREFILL_ROWS.into_iter().filter(|rows| *rows <= most) {
            // Once to warm up.
            self.time_prefill(rows.min(64)).await?;
            calibration.prefill.push((Tokens(rows), millis(self.time_prefill(rows).await?)));
        }
        for streams in DECODE_STREAMS {
            calibration.decode.push((Tokens(streams), millis(self.time_decode(streams).await?)));
        }
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).set(calibration.clone());
        Ok(calibration)
    }

    /// Tokens per second of a build.
    async fn time_build(&self, tokens: u32) -> Result<f64, EngineError> {
        if tokens <= self.config().seam {
            return Ok(0.0);
        }
        let mut took = Duration::ZERO;
        // Once to warm up.
        for _ in 0..2 {
            let ids = self.calibration_ids(tokens);
            let segment = Segment { key: SegmentKey([0; 32]), scope: Scope::PUBLIC, ids, publish: false };
            let begun = Instant::now();
            let mut builds = self.build([segment]);
            while let Some(event) = builds.next().await {
                if let BuildEvent::Failed { error, .. } = event {
                    return Err(error);
                }
            }
            took = begun.elapsed();
        }
        Ok(f64::from(tokens) / took.as_secs_f64().max(f64::MIN_POSITIVE))
    }

    async fn time_prefill(&self, rows: u32) -> Result<Duration, EngineError> {
        let begun = Instant::now();
        let mut stream = self.generate(self.calibration_order(rows, 1, 1)).1;
        while let Some(event) = stream.next().await {
            event?;
        }
        Ok(begun.elapsed())
    }

    /// Time per token of `streams` answers side by side.
    async fn time_decode(&self, streams: u32) -> Result<Duration, EngineError> {
        let mut stream = self.generate(self.calibration_order(16, streams as usize, DECODE_TOKENS)).1;
        let mut begun = Instant::now();
        while let Some(event) = stream.next().await {
            if matches!(event?, TokenEvent::Ready(_)) {
                begun = Instant::now();
            }
        }
        Ok(begun.elapsed() / DECODE_TOKENS)
    }

    fn calibration_ids(&self, count: u32) -> Vec<u32> {
        let vocab = self.spec().vocab as u32;
        (0..count).map(|place| place.wrapping_mul(2_654_435_761) % vocab).collect()
    }

    fn calibration_order(&self, rows: u32, choices: usize, max_tokens: u32) -> Order {
        let ids = self.calibration_ids(rows);
        let sampling = Sampling { temperature: 0.0, max_tokens: Tokens(max_tokens), ..Sampling::default() };
        Order {
            id: "calibration".into(),
            tenant: "calibration".into(),
            scope: Scope::PUBLIC,
            mode: Mode::Recompute,
            pieces: vec![Piece { ids, origin: Origin::Query, key: None }],
            boundaries: Vec::new(),
            sources: vec![None],
            snapshot: Tokens(0),
            choices: vec![sampling; choices],
            deadline: None,
            answered: Vec::new(),
            measure_gap: false,
        }
    }
}

fn millis(time: Duration) -> Millis {
    Millis(time.as_secs_f64() * 1e3)
}
