//! A sequence: one choice of one order, and how far it is.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use hypic_compose::Program;
use hypic_decode::{Limits, Sampler};
use hypic_domain::flow::{Piece, SegmentReport, TokenEvent};
use hypic_domain::id::TenantId;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::logits::Need;
use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::unit::Tokens;
use hypic_kernels::op::Device;
use hypic_kernels::plan::{PlacedBody, Run, RunOp};

use super::EngineError;
use super::edge::{Age, Events};
use super::memory::{Hold, empty_context};
use super::snapshot::Saved;
use super::step::Step;

/// What an order asks, the same for all of its choices.
pub(super) struct Prompt<D: Device> {
    /// Names the request: the age of its first choice.
    pub(super) request: Age,
    pub(super) tenant: TenantId,
    pub(super) scope: Scope,
    pub(super) pieces: Vec<Piece>,
    pub(super) program: Program,
    /// Beside the program's bodies.
    pub(super) keys: Vec<SegmentKey>,
    /// Beside the program's bodies.
    pub(super) bodies: Vec<PlacedBody<D>>,
    /// Rows at which an exact snapshot may stand, ascending, with their keys. Slices end there, whether there
    /// is one or not, so that what was cached changes no slice.
    pub(super) cuts: Vec<(usize, SegmentKey)>,
    /// The full prefill to compare with.
    pub(super) reference: Option<Program>,
    pub(super) deadline: Option<Instant>,
    pub(super) context: Tokens,
    pub(super) choices: usize,
}

/// What the first choice does for all of them, until the prompt is computed.
pub(super) struct Lead {
    /// Choices that follow, by their sampling.
    pub(super) others: Vec<Sampling>,
    /// How each body was had, beside the program's bodies; `None` while it is on its way.
    pub(super) reports: Vec<Option<SegmentReport>>,
    /// Logits of the full prefill, once they are measured.
    pub(super) reference: Option<Vec<f32>>,
    /// Tokens that a snapshot covered.
    pub(super) exact: u32,
    pub(super) arrived: Instant,
    pub(super) begun: Option<Instant>,
    pub(super) measured: Option<Instant>,
    pub(super) gathered: Option<Instant>,
}

/// One choice.
pub(super) struct Sequence<D: Device> {
    pub(super) age: Age,
    pub(super) prompt: Rc<Prompt<D>>,
    pub(super) choice: u32,
    pub(super) sampling: Sampling,
    pub(super) sampler: Sampler,
    /// The answer so far; the last token of it has no row yet.
    pub(super) drawn: Vec<u32>,
    /// Rows computed, of those of the program and then of the answer.
    pub(super) computed: usize,
    /// Slot and pages, while it runs.
    pub(super) hold: Option<Hold<D>>,
    /// Where to begin, when not at the start.
    pub(super) start: Option<Arc<Saved<D>>>,
    /// A composition under way.
    pub(super) flight: Option<Step<D>>,
    pub(super) lead: Option<Lead>,
    pub(super) events: Events,
    /// Pages that must be free before it may begin again.
    pub(super) wants_pages: usize,
}

/// Rows that a sequence computes next.
pub(super) struct Share {
    pub(super) ids: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) ops: Vec<RunOp>,
    /// How many of the program's bodies they attend to.
    pub(super) bodies: usize,
}

impl<D: Device> Sequence<D> {
    /// Whether the full prefill is computed first, to compare with.
    pub(super) fn is_measuring(&self) -> bool {
        self.prompt.reference.is_some() && self.lead.as_ref().is_some_and(|lead| lead.reference.is_none())
    }

    /// The program whose rows come next.
    pub(super) fn program(&self) -> &Program {
        match &self.prompt.reference {
            Some(reference) if self.is_measuring() => reference,
            _ => &self.prompt.program,
        }
    }

    /// Rows to be computed before the next token.
    pub(super) fn rows(&self) -> usize {
        self.program().rows() + if self.is_measuring() { 0 } else { self.drawn.len() }
    }

    /// Whether the next row is that of the last token drawn, and nothing else is missing.
    pub(super) fn is_decoding(&self) -> bool {
        self.lead.is_none() && self.computed + 1 == self.rows()
    }

    /// Whether the next rows are those of a prompt with bodies in it.
    pub(super) fn is_composing(&self) -> bool {
        !self.is_measuring()
            && self.computed < self.prompt.program.rows()
            && !self.prompt.program.bodies.is_empty()
    }

    /// What the next token needs of the logits of the last row, if that is computed.
    pub(super) fn need(&self) -> Option<Need> {
        let others = self.lead.iter().flat_map(|lead| (1..).zip(&lead.others));
        let others = others.map(|(choice, sampling)| Sampler::new(sampling, choice, &self.drawn).need());
        // The distance from the full prefill is over all tokens.
        let gap = self.lead.as_ref().and(self.prompt.reference.as_ref()).map(|_| Need::all());
        let need = others.chain(gap).fold(self.sampler.need(), Need::and);
        (self.computed == self.rows()).then_some(need)
    }

    /// The next rows, at most `budget`, the first of them row `offset` of the step.
    pub(super) fn share(&self, budget: usize, offset: usize) -> Share {
        let program = self.program();
        if self.computed < program.rows() {
            let cuts: Vec<usize> = match self.is_measuring() {
                true => Vec::new(),
                false => self.prompt.cuts.iter().map(|(row, _)| *row).collect(),
            };
            let slice = program.slice(self.computed, budget, &cuts, offset);
            return Share {
                ids: program.ids[slice.rows.clone()].to_vec(),
                positions: program.positions[slice.rows].to_vec(),
                ops: slice.ops,
                bodies: slice.bodies,
            };
        }
        let first = self.computed - program.rows();
        let ids = self.drawn[first..self.drawn.len().min(first + budget)].to_vec();
        let start = program.tokens() + first as u32;
        Share {
            positions: (start..).take(ids.len()).collect(),
            ops: vec![RunOp::Rows(offset..offset + ids.len())],
            bodies: program.bodies.len(),
            ids,
        }
    }

    /// Layers of the first `bodies` bodies that may be computed with now. The last one waits for the word
    /// that the tuple was right as a whole.
    pub(super) fn layers_here(&self, bodies: usize, layers: usize) -> usize {
        let reports = self.lead.as_ref().map(|lead| &lead.reports);
        (0..bodies)
            .map(|body| {
                let is_whole = reports.is_none_or(|reports| reports[body].is_some());
                let most = if is_whole { layers } else { layers - 1 };
                self.prompt.bodies[body].layers.ready().min(most)
            })
            .min()
            .unwrap_or(layers)
    }

    /// Whether it could compute rows if it had a slot now.
    pub(super) fn may_begin(&self, layers: usize) -> bool {
        !self.is_composing() || self.start.is_some() || self.layers_here(self.prompt.bodies.len(), layers) > 0
    }

    /// Whether the reader has room for all that one step can say.
    pub(super) fn has_room(&self) -> bool {
        self.events.capacity() >= 2 * self.prompt.choices
    }

    /// Nobody listens, or it is too late.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.events.is_closed() || self.prompt.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { prompt: Tokens(self.prompt.program.tokens()), context: self.prompt.context }
    }

    /// Tells the reader. A reader that is gone is noticed at the next step; room was seen to before.
    pub(super) fn tell(&self, event: TokenEvent) {
        let _ = self.events.try_send(Ok(event));
    }

    /// The choice is complete.
    pub(super) fn finish(&self, reason: FinishReason) {
        self.tell(TokenEvent::Finished { choice: self.choice, reason });
    }

    /// The request ends with an error.
    pub(super) fn fail(&self, error: EngineError) {
        // A full channel belongs to a reader that sees the stream end instead.
        let _ = self.events.try_send(Err(error));
    }

    /// Gives slot and pages back; what was computed is to be computed again.
    pub(super) fn lose_memory(&mut self) {
        self.hold = None;
        self.flight = None;
        self.start = None;
        self.computed = 0;
    }

    /// Packs its rows; its context is in the step until [`Sequence::take_back`]. Room was made before.
    pub(super) fn take_part(&mut self, step: &mut Step<D>, share: Share) {
        let Some(hold) = &mut self.hold else { return };
        let placed = hold.context.bodies.len();
        hold.context
            .bodies
            .extend(self.prompt.bodies[placed.min(share.bodies)..share.bodies].iter().cloned());
        hold.context.live.extend(share.positions);
        let rows = step.rows()..step.rows() + share.ids.len();
        let context = std::mem::replace(&mut hold.context, empty_context());
        step.push(&share.ids, Run { rows, slot: hold.slot(), context, ops: share.ops, record: None });
    }

    /// Takes its context back; returns the step's row that was its last.
    pub(super) fn take_back(&mut self, run: Option<Run<D>>) -> Option<usize> {
        let (run, hold) = (run?, self.hold.as_mut()?);
        hold.context = run.context;
        self.computed += run.rows.len();
        Some(run.rows.end - 1)
    }
}
