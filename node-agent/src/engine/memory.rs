//! The engine's memory: weights, state slots, KV pages and snapshots under one byte cap.

use hypic_domain::model::{LayerSpec, ModelSpec};
use hypic_domain::unit::Bytes;
use hypic_kernels::op::{Device, OpError};
use hypic_kernels::plan::Context;
use hypic_store::SnapshotCache;

use super::pool::{Lease, Pool};
use super::snapshot::Saved;
use super::{EngineConfig, EngineError};

/// How many pages fit under the cap beside everything else; `device` are bytes for the KV of cached bodies and for what
/// builds record.
///
/// # Errors
/// A cap under which not one sequence of two pages fits.
pub(super) fn pages_under_cap(
    spec: &ModelSpec,
    config: &EngineConfig,
    device: u64,
) -> Result<usize, EngineError> {
    let slots = spec.slot_bytes().0 * (config.slots + config.builds) as u64;
    let fixed = config.weights.0 + slots + config.snapshots.0 + config.bodies.0 + device;
    let page = page_bytes(spec, config).max(1);
    let pages = config.memory.0.saturating_sub(fixed) / page;
    // A model without full layers needs no bytes for pages; their count still bounds what runs at once.
    let bound = spec.context.0 as u64 * (config.slots + config.builds) as u64 / config.page_tokens as u64 + 2;
    match pages.min(bound) {
        0 | 1 => Err(EngineError::FitMemory { needed: Bytes(fixed + 2 * page), cap: config.memory }),
        pages => Ok(pages as usize),
    }
}

fn page_bytes(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    let values: usize = spec
        .layers
        .iter()
        .map(|layer| match layer {
            LayerSpec::Linear(_) => 0,
            LayerSpec::Full(shape) => shape.kv_heads * (shape.key + shape.value),
        })
        .sum();
    (values * config.page_tokens * config.format.kv.size()) as u64
}

/// The pools and who may use them.
pub(super) struct Memory<D: Device> {
    pub(super) states: D::States,
    pub(super) pages: D::Pages,
    /// Slots of sequences.
    pub(super) slots: Pool,
    /// Slots of builds, apart, so that a sequence that waits for a build cannot hold it up.
    pub(super) build_slots: Pool,
    pub(super) page_pool: Pool,
    pub(super) page_tokens: usize,
    pub(super) snapshots: SnapshotCache<Saved<D>>,
}

/// What a running sequence or build owns; dropping it frees all of it.
pub(super) struct Hold<D: Device> {
    slot: Lease,
    pages: Vec<Lease>,
    /// What its rows attend to; its page numbers are those of `pages`.
    pub(super) context: Context<D>,
}

impl<D: Device> Hold<D> {
    /// The state slot's number.
    pub(super) fn slot(&self) -> usize {
        self.slot.number()
    }

    /// Everything needed to go on from here, sharing the pages.
    pub(super) fn save(&self, device: &D, memory: &Memory<D>) -> Result<Saved<D>, OpError> {
        Ok(Saved {
            state: device.save_slot(&memory.states, self.slot())?,
            pages: self.pages.clone(),
            live: self.context.live.clone(),
        })
    }
}

impl<D: Device> Memory<D> {
    /// Pages that `tokens` live tokens fill.
    pub(super) fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// A slot set to zero, without pages. States are set here, on acquire, and never trusted from a former
    /// owner.
    pub(super) fn hold(&mut self, device: &D, slot: Lease) -> Result<Hold<D>, OpError> {
        device.reset_slot(&mut self.states, slot.number())?;
        Ok(Hold { slot, pages: Vec::new(), context: empty_context() })
    }

    /// A slot set from a copy, sharing its pages.
    pub(super) fn hold_from(
        &mut self,
        device: &D,
        slot: Lease,
        saved: &Saved<D>,
    ) -> Result<Hold<D>, OpError> {
        device.load_slot(&mut self.states, slot.number(), &saved.state)?;
        let context = Context {
            pages: saved.pages.iter().map(Lease::number).collect(),
            live: saved.live.clone(),
            bodies: Vec::new(),
        };
        Ok(Hold { slot, pages: saved.pages.clone(), context })
    }

    /// Free pages that `hold` lacks to take `rows` more live tokens.
    pub(super) fn pages_missing(&self, hold: &Hold<D>, rows: usize) -> usize {
        let live = hold.context.live.len();
        let more = self.pages_for(live + rows).saturating_sub(hold.pages.len());
        (more + usize::from(self.must_copy(hold))).saturating_sub(self.page_pool.free())
    }

    /// A page that is only partly full is written next; while others share it, that takes a copy.
    fn must_copy(&self, hold: &Hold<D>) -> bool {
        !hold.context.live.len().is_multiple_of(self.page_tokens)
            && hold.pages.last().is_some_and(Lease::is_shared)
    }

    /// Makes room for `rows` more live tokens. False, and nothing changed, when pages are missing.
    pub(super) fn reserve(&mut self, device: &D, hold: &mut Hold<D>, rows: usize) -> Result<bool, OpError> {
        if self.pages_missing(hold, rows) > 0 {
            return Ok(false);
        }
        if self.must_copy(hold)
            && let (Some(last), Some(own)) = (hold.pages.last(), self.page_pool.take())
        {
            device.copy_page(&mut self.pages, last.number(), own.number())?;
            hold.pages.pop();
            hold.context.pages.pop();
            hold.context.pages.push(own.number());
            hold.pages.push(own);
        }
        while hold.pages.len() < self.pages_for(hold.context.live.len() + rows) {
            let Some(page) = self.page_pool.take() else { return Ok(false) };
            hold.context.pages.push(page.number());
            hold.pages.push(page);
        }
        Ok(true)
    }
}

pub(super) fn empty_context<D: Device>() -> Context<D> {
    Context { pages: Vec::new(), live: Vec::new(), bodies: Vec::new() }
}
