//! What the engine is told, and who may begin.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypic_compose::Program;
use hypic_decode::Sampler;
use hypic_domain::flow::{ColdReason, Mode, Order, SegmentOutcome, SegmentReport};
use hypic_domain::id::AgentId;
use hypic_domain::sampling::FinishReason;
use hypic_domain::unit::{Millis, Tokens};
use hypic_kernels::op::{Device, HostLayer, OpError};
use hypic_kernels::plan::PlacedBody;

use super::core::Core;
use super::edge::{Age, BuildEvent, Command, Events};
use super::pool::Lease;
use super::scatter::Listener;
use super::sequence::{Lead, Prompt, Sequence};
use super::{EngineError, Segment};

/// Longest deadline that is kept: beyond it, `Instant` may not reach.
const LONGEST: Duration = Duration::from_secs(86_400);

impl<D: Device> Core<D> {
    /// Does what it was told.
    pub(super) fn obey(&mut self, command: Command) {
        match command {
            Command::Generate { age, order, events } => self.generate(age, *order, events),
            Command::Layer { age, piece, layer, host } => self.layer_came(age, piece, layer, &host),
            Command::Arrived { age, piece, outcome, by } => self.arrived(age, piece, outcome, by),
            Command::Lost { age, piece, reason } => self.lost(age, Some(piece), reason),
            Command::FeedClosed { age } => self.lost(age, None, ColdReason::Unknown),
            Command::Build { age, segment, events } => {
                let key = segment.key;
                if let Err(error) = self.want_build(age, &segment, Some(Listener::Reader(events.clone()))) {
                    // One that is gone needs no answer.
                    let _ = events.send(BuildEvent::Failed { key, error });
                }
            }
            Command::Wake => {}
        }
    }

    fn generate(&mut self, age: Age, order: Order, events: Events) {
        let refused = events.clone();
        match self.admit(age, order, events) {
            Ok(sequence) => {
                let tenant = sequence.prompt.tenant.clone();
                let cost = u64::from(sequence.prompt.program.tokens());
                self.waiting.push(&tenant, cost, sequence);
            }
            // The channel is new and has room.
            Err(error) => drop(refused.try_send(Err(error))),
        }
    }

    /// The first choice of an order, checked.
    fn admit(&mut self, age: Age, order: Order, events: Events) -> Result<Sequence<D>, EngineError> {
        let context = self.model.spec().context;
        let compose = |mode| {
            Program::of_prompt(&order.pieces, mode, self.config.seam, self.config.ablation)
                .map_err(|source| EngineError::ComposeOrder { source })
        };
        let program = compose(order.mode)?;
        let measured = order.measure_gap && order.mode != Mode::Recompute;
        let reference = if measured { Some(compose(Mode::Recompute)?) } else { None };
        for piece in &order.pieces {
            self.check_ids(&piece.ids)?;
        }
        self.check_ids(&order.answered)?;
        if self.waiting.len() >= self.config.queue {
            // Some of them may be gone already.
            self.sweep();
        }
        let waiting = self.waiting.len();
        if waiting >= self.config.queue {
            return Err(EngineError::QueueOrder { waiting });
        }
        let tokens = Tokens(program.tokens() + order.answered.len() as u32);
        if tokens >= context {
            return Err(EngineError::FitContext { tokens, context });
        }
        let rows = reference.as_ref().map_or(0, Program::rows).max(program.rows() + order.answered.len());
        self.check_pages(rows + 1)?;
        let mut choices = order.choices.into_iter();
        let choice_count = choices.len();
        let Some(sampling) = choices.next() else {
            return Err(EngineError::ReadOrder { reason: "it asks for no choice".to_owned() });
        };
        if choice_count > 1 && !order.answered.is_empty() {
            return Err(EngineError::ReadOrder { reason: "only one choice can be continued".to_owned() });
        }
        let keys: Vec<_> = program.bodies.iter().filter_map(|body| order.pieces[body.piece].key).collect();
        let places = keys.iter().zip(&program.bodies);
        let placed = places.map(|(key, body)| PlacedBody {
            layers: self.bodies.place(*key),
            start: body.start,
            len: body.len,
        });
        let bodies = placed.collect();
        let cuts = match order.mode {
            Mode::Prefix | Mode::Pic => order
                .boundaries
                .iter()
                .map(|(tokens, key)| (tokens.0 as usize, *key))
                .filter(|(row, _)| 0 < *row && *row <= program.exact_rows())
                .collect(),
            Mode::Recompute | Mode::Add | Mode::Last => Vec::new(),
        };
        let now = Instant::now();
        let deadline = order.deadline.map(|Millis(left)| {
            now + Duration::try_from_secs_f64(left.max(0.0) / 1e3).unwrap_or(LONGEST).min(LONGEST)
        });
        Ok(Sequence {
            age,
            choice: 0,
            sampler: Sampler::new(&sampling, 0, &order.answered),
            sampling,
            drawn: order.answered,
            computed: 0,
            hold: None,
            start: None,
            flight: None,
            lead: Some(Lead {
                others: choices.collect(),
                reports: vec![None; program.bodies.len()],
                reference: None,
                exact: 0,
                arrived: now,
                begun: None,
                measured: None,
                gathered: None,
            }),
            events,
            wants_pages: 0,
            prompt: Rc::new(Prompt {
                request: age,
                tenant: order.tenant,
                scope: order.scope,
                pieces: order.pieces,
                program,
                keys,
                bodies,
                cuts,
                reference,
                deadline,
                context,
                choices: choice_count,
            }),
        })
    }

    /// Ids beyond the vocabulary would read beyond the table.
    pub(super) fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        let vocab = self.model.spec().vocab;
        match ids.iter().find(|id| **id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(EngineError::ReadOrder { reason: format!("token {id} of {vocab}") }),
        }
    }

    /// What no page could be found for, ever, is refused at once.
    pub(super) fn check_pages(&self, tokens: usize) -> Result<(), EngineError> {
        let limit = self.memory.page_pool.size() * self.memory.page_tokens;
        if tokens <= limit { Ok(()) } else { Err(EngineError::fit_pages(tokens, limit)) }
    }

    /// The first choice of a request, while its prompt is not computed.
    fn lead_of(&mut self, request: Age) -> Option<&mut Sequence<D>> {
        self.running
            .values_mut()
            .chain(self.waiting.iter_mut())
            .find(|sequence| sequence.age == request && sequence.lead.is_some())
    }

    fn layer_came(&mut self, age: Age, piece: usize, layer: usize, host: &HostLayer) {
        let Some(sequence) = self.lead_of(age) else { return };
        let prompt = Rc::clone(&sequence.prompt);
        let Some(place) = prompt.program.bodies.iter().position(|body| body.piece == piece) else { return };
        match self.take_over(&prompt.keys[place], &prompt.bodies[place].layers, (layer, host)) {
            Ok(()) => {}
            // It would find no room when it is built, either.
            Err(error @ OpError::OutOfMemory { .. }) => {
                self.fail_request(prompt.request, &EngineError::run_step(error));
            }
            Err(error) => {
                tracing::warn!(key = %prompt.keys[place], layer, error = %error, "a tuple does not fit the model");
                self.lost(age, Some(piece), ColdReason::Corrupt);
            }
        }
    }

    fn arrived(&mut self, age: Age, piece: usize, outcome: SegmentOutcome, by: Option<AgentId>) {
        let layers = self.layers.len();
        let Some(sequence) = self.lead_of(age) else { return };
        let place = sequence.prompt.program.bodies.iter().position(|body| body.piece == piece);
        let Some(place) = place else { return };
        if sequence.prompt.bodies[place].layers.ready() < layers {
            // Somebody said it was whole and it is not.
            self.lost(age, Some(piece), ColdReason::Corrupt);
            return;
        }
        sequence.report(place, SegmentReport { piece, outcome, by });
    }

    /// The tuple of `piece`, or of every piece that is still on its way, has to be built here.
    fn lost(&mut self, age: Age, piece: Option<usize>, cold: ColdReason) {
        let Some(sequence) = self.lead_of(age) else { return };
        let prompt = Rc::clone(&sequence.prompt);
        for (place, body) in prompt.program.bodies.iter().enumerate() {
            let Some(sequence) = self.lead_of(age) else { return };
            let is_open = sequence.lead.as_ref().is_some_and(|lead| lead.reports[place].is_none());
            if !is_open || piece.is_some_and(|piece| piece != body.piece) {
                continue;
            }
            let outcome = SegmentOutcome::Built { cold };
            sequence.report(place, SegmentReport { piece: body.piece, outcome, by: None });
            if prompt.bodies[place].layers.ready() == self.layers.len() {
                continue;
            }
            let segment = Segment {
                key: prompt.keys[place],
                scope: prompt.scope,
                ids: prompt.pieces[body.piece].ids.clone(),
                publish: true,
            };
            if let Err(error) = self.want_build(age, &segment, None) {
                self.fail_request(age, &error);
            }
        }
    }

    /// Ends all choices of a request with an error.
    pub(super) fn fail_request(&mut self, request: Age, error: &EngineError) {
        let lost: Vec<Age> =
            self.running.iter().filter(|(_, s)| s.prompt.request == request).map(|(age, _)| *age).collect();
        let mut ended: Vec<Sequence<D>> =
            lost.into_iter().filter_map(|age| self.running.remove(&age)).collect();
        ended.extend(self.waiting.remove_unless(|sequence| sequence.prompt.request != request));
        if let Some(sequence) = ended.first() {
            sequence.fail(error.clone());
        }
    }

    /// Ends what nobody reads and what is too late; frees all that only those held.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        let over: Vec<Age> =
            self.running.iter().filter(|(_, s)| s.is_over(now)).map(|(age, _)| *age).collect();
        let mut ended: Vec<Sequence<D>> =
            over.into_iter().filter_map(|age| self.running.remove(&age)).collect();
        ended.extend(self.waiting.remove_unless(|sequence| !sequence.is_over(now)));
        self.counters.cancelled += ended.len() as u64;
        for sequence in ended {
            sequence.finish(FinishReason::Cancelled);
            for sampling in sequence.lead.iter().flat_map(|lead| 1..=lead.others.len()) {
                sequence.tell(hypic_domain::flow::TokenEvent::Finished {
                    choice: sampling as u32,
                    reason: FinishReason::Cancelled,
                });
            }
        }
        self.builds.retain_mut(|build| build.is_wanted());
        self.bodies.sweep();
    }

    /// Gives free slots to those that wait, fairly.
    pub(super) fn begin_sequences(&mut self) {
        while let Some(slot) = self.memory.slots.take() {
            let (free, layers) = (self.memory.page_pool.free(), self.layers.len());
            let alone = self.running.is_empty();
            let next = self
                .waiting
                .take(|sequence| (alone || sequence.wants_pages <= free) && sequence.may_begin(layers));
            match next {
                Some(sequence) => self.begin(sequence, slot),
                None => return,
            }
        }
    }

    /// Sets a slot for a sequence: from its own copy, from the longest snapshot, or to zero.
    pub(super) fn begin(&mut self, mut sequence: Sequence<D>, slot: Lease) {
        let mut row = sequence.computed;
        let mut saved = sequence.start.take();
        if saved.is_none() && !sequence.is_measuring() {
            let rows = sequence.prompt.program.rows();
            for (cut, key) in sequence.prompt.cuts.iter().rev().filter(|(cut, _)| *cut < rows) {
                if let Some(found) = self.memory.snapshots.get(key) {
                    self.counters.snapshots_used += 1;
                    (row, saved) = (*cut, Some(found));
                    break;
                }
            }
        }
        if saved.is_none() {
            row = 0;
        }
        if let Some(lead) = &mut sequence.lead {
            lead.begun.get_or_insert_with(Instant::now);
            lead.exact = row as u32;
        }
        sequence.computed = row;
        sequence.wants_pages = 0;
        let hold = match saved {
            Some(saved) => self.memory.hold_from(&self.device, slot, &saved),
            None => self.memory.hold(&self.device, slot),
        };
        let request = sequence.prompt.request;
        let failed = match hold {
            Ok(hold) => {
                sequence.hold = Some(hold);
                None
            }
            Err(source) => Some(EngineError::run_step(source)),
        };
        self.running.insert(sequence.age, sequence);
        if let Some(error) = failed {
            self.fail_request(request, &error);
        }
    }
}

impl<D: Device> Sequence<D> {
    /// Notes how a body was had.
    fn report(&mut self, place: usize, report: SegmentReport) {
        if let Some(lead) = &mut self.lead {
            lead.reports[place].get_or_insert(report);
            if lead.reports.iter().all(Option::is_some) {
                lead.gathered = Some(Instant::now());
            }
        }
    }
}

impl EngineError {
    pub(super) fn run_step(source: OpError) -> Self {
        Self::RunStep { source: Arc::new(source) }
    }

    pub(super) fn fit_pages(tokens: usize, limit: usize) -> Self {
        Self::FitPages { tokens: Tokens(tokens as u32), limit: Tokens(limit as u32) }
    }
}
