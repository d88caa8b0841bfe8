//! What the launches of a step of decode read that the next step changes, at fixed places on the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hypic_domain::model::FullShape;
use hypic_kernels::check::{self, Room};
use hypic_kernels::op::OpError;
use hypic_kernels::plan::{BodyLayers, PlacedBody, Plan, Run, RunOp};

use super::listed::{Listed, listed};
use super::{CudaDevice, failed};
use crate::contexts::{Context, Contexts, Lists, Token};
use crate::memory::Float;
use crate::rows::check_ids;
use crate::{Buffer, Device};

const OP: &str = "step";

/// Whether every sequence of a step has one row and nothing else.
pub(super) fn is_step<E: Float>(plan: &Plan<CudaDevice<E>>) -> bool {
    let is_row = |run: &Run<_>| run.record.is_none() && matches!(&run.ops[..], [RunOp::Rows(_)]);
    plan.runs.iter().all(|run| run.rows.len() == 1 && is_row(run))
}

/// The slot of each sequence of a step.
pub(super) fn slots_of<E: Float>(plan: &Plan<CudaDevice<E>>) -> Vec<u32> {
    plan.runs.iter().map(|run| run.slot as u32).collect()
}

/// The tables of a step, for its ops and for the next step.
pub(super) type SharedTables<E> = Arc<Mutex<StepTables<E>>>;

/// What the ops of a step read that the next step changes.
pub(super) struct StepTables<E: Float> {
    ids: Placed,
    slots: Placed,
    /// Rows of the table of embeddings, once it was used.
    embeddings: Option<usize>,
    /// Once there was a full layer.
    full: Option<Full<E>>,
}

/// What has become of tables when another step was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Every row sees what it saw, and its own token.
    GoesOn,
    /// Some row sees another context.
    Anew,
    /// They have no room for it.
    Outgrown,
}

/// Numbers on the host and on the device.
struct Placed {
    host: Vec<u32>,
    device: Buffer<u32>,
}

/// The contexts of all full layers.
struct Full<E: Float> {
    /// The first of them.
    layer: usize,
    shape: FullShape,
    room: Room,
    contexts: Contexts,
    lists: Lists,
    seen: Vec<Seen<E>>,
}

/// A body, and its first token and tokens. Nobody else gets its address while this is here.
type Placement<E> = (Weak<BodyLayers<CudaDevice<E>>>, [u32; 2]);

/// What a run's row sees.
struct Seen<E: Float> {
    pages: Vec<usize>,
    live: Vec<u32>,
    bodies: Vec<Placement<E>>,
    /// Tokens that its list has room for.
    room: usize,
}

/// A panic while it was held leaves tables that the next step writes anew.
pub(super) fn locked<E: Float>(tables: &SharedTables<E>) -> MutexGuard<'_, StepTables<E>> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Placed {
    fn new(gpu: &Device, host: Vec<u32>) -> crate::Result<Self> {
        Ok(Self { device: Buffer::from_slice(gpu, &host)?, host })
    }

    fn take(&mut self, host: Vec<u32>) -> crate::Result<()> {
        if self.host != host {
            self.device.write(&host)?;
            self.host = host;
        }
        Ok(())
    }

    fn of(&self, host: &[u32]) -> Option<&Buffer<u32>> {
        (self.host == host).then_some(&self.device)
    }
}

impl<E: Float> Seen<E> {
    fn new(run: &Run<CudaDevice<E>>) -> Self {
        let context = &run.context;
        let body = |body: &PlacedBody<_>| (Arc::downgrade(&body.layers), [body.start, body.len]);
        let mut seen = Self {
            pages: context.pages.clone(),
            live: context.live.clone(),
            bodies: context.bodies.iter().map(body).collect(),
            room: 0,
        };
        seen.room = room_of(seen.tokens());
        seen
    }

    fn tokens(&self) -> usize {
        self.live.len() + self.bodies.iter().map(|(_, [_, len])| *len as usize).sum::<usize>()
    }

    /// Takes over a run whose row sees the same, or one token more: its own, behind all others. False where it does not.
    fn take(&mut self, run: &Run<CudaDevice<E>>, page_tokens: usize) -> bool {
        let context = &run.context;
        let (before, filled) = (self.live.len(), self.live.len().div_ceil(page_tokens));
        let is_longer = context.live.len() == before + 1;
        let same_bodies = self.bodies.len() == context.bodies.len()
            && self.bodies.iter().zip(&context.bodies).all(|((layers, at), body)| {
                std::ptr::eq(layers.as_ptr(), Arc::as_ptr(&body.layers)) && *at == [body.start, body.len]
            });
        let last = context.live.last().copied().unwrap_or(0);
        let is_last = self.bodies.iter().all(|(_, [start, len])| start + len <= last);
        let goes_on = same_bodies
            && is_last
            && (is_longer || context.live.len() == before)
            && context.live.get(..before) == Some(&self.live[..])
            && context.pages.get(..filled) == self.pages.get(..filled)
            && self.tokens() + usize::from(is_longer) <= self.room;
        if goes_on && is_longer {
            self.live.push(last);
            self.pages.clone_from(&context.pages);
        }
        goes_on
    }

    /// The row's own token.
    fn token(&self, page_tokens: usize) -> Token {
        let at = self.live.len().saturating_sub(1);
        let page = self.pages.get(at / page_tokens).copied().unwrap_or(0);
        let position = self.live.last().copied().unwrap_or(0);
        Token { slot: (page * page_tokens + at % page_tokens) as u32, position }
    }
}

/// Room for a list of tokens that grows.
fn room_of(tokens: usize) -> usize {
    (tokens + 1).next_multiple_of(256)
}

impl<E: Float> Full<E> {
    fn new(
        gpu: &Device,
        plan: &Plan<CudaDevice<E>>,
        (layer, shape, room): (usize, FullShape, Room),
    ) -> Result<Self, OpError> {
        let lists = lists_of(gpu, plan, layer, (shape, room.page_tokens))?;
        let contexts = Contexts::roomy(gpu, (shape, room.page_tokens), &lists).map_err(failed(OP))?;
        let seen = plan.runs.iter().map(Seen::new).collect();
        Ok(Self { layer, shape, room, contexts, lists, seen })
    }

    /// Takes over another step of as many sequences.
    fn take(&mut self, gpu: &Device, plan: &Plan<CudaDevice<E>>) -> Result<Taken, OpError> {
        check::contexts(self.layer, plan, self.room)?;
        let of = (self.shape, self.room.page_tokens);
        if plan.runs.iter().zip(&mut self.seen).all(|(run, seen)| seen.take(run, of.1)) {
            let rows = self.seen.iter().map(|seen| (seen.token(of.1), seen.tokens()));
            let grown = self.lists.grow(gpu, of, rows);
            let fits = grown.and_then(|()| self.contexts.take_grown(&self.lists)).map_err(failed(OP))?;
            return Ok(if fits { Taken::GoesOn } else { Taken::Outgrown });
        }
        self.lists = lists_of(gpu, plan, self.layer, of)?;
        self.seen = plan.runs.iter().map(Seen::new).collect();
        let fits = self.contexts.take(&self.lists).map_err(failed(OP))?;
        Ok(if fits { Taken::Anew } else { Taken::Outgrown })
    }
}

impl<E: Float> StepTables<E> {
    pub(super) fn new(gpu: &Device, plan: &Plan<CudaDevice<E>>) -> crate::Result<Self> {
        let (ids, slots) = (Placed::new(gpu, plan.ids.clone())?, Placed::new(gpu, slots_of(plan))?);
        Ok(Self { ids, slots, embeddings: None, full: None })
    }

    /// Takes over another step of as many sequences.
    pub(super) fn take(&mut self, gpu: &Device, plan: &Plan<CudaDevice<E>>) -> Result<Taken, OpError> {
        if let Some(rows) = self.embeddings {
            check_ids(&plan.ids, rows).map_err(failed("embed"))?;
        }
        let numbers = self.ids.take(plan.ids.clone()).and_then(|()| self.slots.take(slots_of(plan)));
        numbers.map_err(failed(OP))?;
        self.full.as_mut().map_or(Ok(Taken::GoesOn), |full| full.take(gpu, plan))
    }

    /// These ids on the device, if they are the step's; `rows` are those of the table of embeddings.
    pub(super) fn ids(&mut self, ids: &[u32], rows: usize) -> Option<&Buffer<u32>> {
        self.embeddings = Some(rows);
        self.ids.of(ids)
    }

    /// These slots on the device, if they are the step's.
    pub(super) fn slots(&self, slots: &[u32]) -> Option<&Buffer<u32>> {
        self.slots.of(slots)
    }

    /// The contexts of a full layer, made where it is the first; none where it is of another shape.
    pub(super) fn contexts(
        &mut self,
        gpu: &Device,
        plan: &Plan<CudaDevice<E>>,
        (layer, shape, room): (usize, FullShape, Room),
    ) -> Result<Option<&mut Contexts>, OpError> {
        let full = match &mut self.full {
            Some(full) => full,
            // Not from the arena: it is written between steps.
            none => none.insert(gpu.in_arena(false, || Full::new(gpu, plan, (layer, shape, room)))?),
        };
        if full.shape != shape || full.room != room {
            return Ok(None);
        }
        if full.layer == layer {
            full.contexts.append(gpu).map_err(failed(OP))?;
        }
        Ok(Some(&mut full.contexts))
    }
}

fn lists_of<E: Float>(
    gpu: &Device,
    plan: &Plan<CudaDevice<E>>,
    layer: usize,
    of: (FullShape, usize),
) -> Result<Lists, OpError> {
    let listed = listed(plan, layer, of.1)?;
    let contexts: Vec<Context<'_>> = listed.iter().map(Listed::context).collect();
    Lists::cut(gpu, of, &contexts, (None, false), room_of).map_err(failed(OP))
}
