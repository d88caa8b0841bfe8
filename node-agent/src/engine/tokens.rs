//! What follows computed rows: snapshots, the gap, the fork into choices, and tokens.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use hypic_compose::gap;
use hypic_decode::{Sampler, check};
use hypic_domain::flow::{DrawnToken, ReadyState, SegmentOutcome, TokenEvent};
use hypic_domain::logits::Logits;
use hypic_domain::sampling::FinishReason;
use hypic_domain::unit::{Millis, Tokens};
use hypic_kernels::op::{Device, OpError};

use super::EngineError;
use super::core::Core;
use super::edge::Age;
use super::sequence::{Lead, Prompt, Sequence};

impl<D: Device> Core<D> {
    /// A running sequence has computed some rows; `logits` are what it needs of those of its last one, if it was the last.
    pub(super) fn computed(&mut self, age: Age, logits: Option<Logits>) {
        self.save_snapshot(age);
        let Some(logits) = logits else { return };
        let Some(mut sequence) = self.running.remove(&age) else { return };
        if sequence.is_measuring() {
            self.measured(sequence, logits.into_all());
            return;
        }
        if let Some(lead) = sequence.lead.take() {
            sequence.tell(TokenEvent::Ready(ready(&sequence.prompt, &lead, &logits)));
            if let Err(source) = self.fork(&sequence, lead, &logits) {
                sequence.fail(EngineError::run_step(source));
                return;
            }
        }
        if self.draw(&mut sequence, &logits) {
            self.running.insert(age, sequence);
        }
    }

    /// The full prefill is done: its logits are kept, and the order's own program begins in the same slot.
    fn measured(&mut self, mut sequence: Sequence<D>, logits: Option<Vec<f32>>) {
        if let Some(lead) = &mut sequence.lead {
            lead.reference = logits;
            lead.measured = Some(Instant::now());
        }
        sequence.lose_memory();
        // The slot is free again, and this sequence is the first to ask for it.
        if let Some(slot) = self.memory.slots.take() {
            self.begin(sequence, slot);
        }
    }

    /// Keeps an exact snapshot where one may stand.
    fn save_snapshot(&mut self, age: Age) {
        let Some(sequence) = self.running.get(&age) else { return };
        if sequence.is_measuring() {
            return;
        }
        let cut = sequence.prompt.cuts.iter().find(|(row, _)| *row == sequence.computed);
        let (Some((row, key)), Some(hold)) = (cut, &sequence.hold) else { return };
        if self.memory.snapshots.contains(key) {
            return;
        }
        let saved = match hold.save(&self.device, &self.memory) {
            Ok(saved) => Arc::new(saved),
            Err(error) => {
                tracing::warn!(%key, %error, "no snapshot could be taken");
                return;
            }
        };
        // Times are only compared with each other, and go by the rows.
        let time = Millis(*row as f64);
        let bytes = self.model.spec().slot_bytes();
        match self.memory.snapshots.put(*key, saved, bytes, &sequence.prompt.scope, time) {
            Ok(()) => self.counters.snapshots_saved += 1,
            Err(error) => tracing::debug!(%key, %error, "a snapshot is not kept"),
        }
    }

    /// The other choices begin where the prompt ends, on copies of its state and shared pages. Each draws its
    /// first token now and waits for a slot to go on.
    fn fork(&mut self, first: &Sequence<D>, lead: Lead, logits: &Logits) -> Result<(), OpError> {
        let Some(hold) = first.hold.as_ref().filter(|_| !lead.others.is_empty()) else { return Ok(()) };
        let end = Arc::new(hold.save(&self.device, &self.memory)?);
        let mut forks = Vec::new();
        for (choice, sampling) in (1..).zip(lead.others) {
            let mut fork = Sequence {
                age: first.age + u64::from(choice),
                prompt: Rc::clone(&first.prompt),
                choice,
                sampler: Sampler::new(&sampling, choice, &first.drawn),
                sampling,
                drawn: first.drawn.clone(),
                computed: first.computed,
                hold: None,
                start: Some(Arc::clone(&end)),
                flight: None,
                lead: None,
                events: first.events.clone(),
                wants_pages: 0,
            };
            if self.draw(&mut fork, logits) {
                forks.push(fork);
            }
        }
        // The last is put in front first, so that they stand in their order.
        for fork in forks.into_iter().rev() {
            self.waiting.put_back(&first.prompt.tenant, fork);
        }
        Ok(())
    }

    /// Draws a sequence's next token and tells it. False when the choice is complete.
    fn draw(&mut self, sequence: &mut Sequence<D>, logits: &Logits) -> bool {
        let answered = Tokens(sequence.drawn.len() as u32);
        let limits = sequence.limits();
        if let Some(reason) = check(&sequence.sampling, limits, answered, None) {
            sequence.finish(reason);
            return false;
        }
        let draw = match sequence.sampler.draw(logits) {
            Ok(draw) => draw,
            Err(source) => {
                sequence.fail(EngineError::DrawToken { source });
                return false;
            }
        };
        self.counters.drawn += 1;
        let reason = check(&sequence.sampling, limits, answered, Some(draw.id));
        if reason != Some(FinishReason::Stop) {
            sequence.drawn.push(draw.id);
            sequence.tell(TokenEvent::Token(DrawnToken {
                choice: sequence.choice,
                id: draw.id,
                logprob: draw.logprob,
                top: draw.top,
            }));
        }
        if let Some(reason) = reason {
            sequence.finish(reason);
        }
        reason.is_none()
    }
}

/// What is told when the prompt is computed.
fn ready<D: Device>(prompt: &Prompt<D>, lead: &Lead, logits: &Logits) -> ReadyState {
    let segments: Vec<_> = lead.reports.iter().flatten().cloned().collect();
    let was_built = |piece: usize| {
        segments
            .iter()
            .any(|report| report.piece == piece && matches!(report.outcome, SegmentOutcome::Built { .. }))
    };
    ReadyState {
        counts: prompt.program.counts(lead.exact, |body| was_built(body.piece)),
        stations: stations(lead),
        gap: match (&lead.reference, logits) {
            (Some(reference), Logits::All(logits)) => Some(gap::kl(reference, logits)),
            _ => None,
        },
        segments,
    }
}

/// Milliseconds per station: waiting for a slot, the full prefill to compare with, waiting for tuples, and
/// computing.
fn stations(lead: &Lead) -> Vec<(String, Millis)> {
    let now = Instant::now();
    let begun = lead.begun.unwrap_or(now);
    let own = lead.measured.unwrap_or(begun);
    let composing = lead.gathered.map_or(own, |gathered| gathered.max(own));
    let between = |name: &str, from: Instant, to: Instant| {
        (name.to_owned(), Millis(to.saturating_duration_since(from).as_secs_f64() * 1e3))
    };
    let mut stations = vec![between("queue", lead.arrived, begun)];
    if let Some(measured) = lead.measured {
        stations.push(between("gap", begun, measured));
    }
    if lead.gathered.is_some() {
        stations.push(between("scatter", lead.arrived, composing));
    }
    stations.push(between("compose", composing, now));
    stations
}
