//! Steps of decode that are recorded once and run again: what they launch does not depend on what they are about, and
//! what does lies in tables at fixed places.
//!
//! The first step of so many sequences runs as any other, with memory from an arena; the second is recorded, and from then
//! on the recording runs, but where other sequences or bodies have come: what those need for the first time is not in it. Its memory lies in the arena, its weights and pools are named by address: when one of those is
//! gone, or the tables outgrow their room, the recording goes too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hypic_kernels::check;
use hypic_kernels::op::{OpError, StepLayers};
use hypic_kernels::plan::Plan;

use super::memory::{Pages, States, Tensor};
use super::step_tables::{SharedTables, StepTables, Taken, is_step, locked};
use super::tuple::LayerParts;
use super::{CudaDevice, failed};
use crate::arena::always;
use crate::memory::{Float, Fresh};
use crate::{Buffer, Graph};

const OP: &str = "step";
/// Numbers of sequences for which a recording is kept. Beyond it all are dropped.
const MOST: usize = 256;

/// Recordings of a device, by their number of sequences.
pub(super) struct Recordings<E: Float>(Mutex<HashMap<usize, Recording<E>>>);

impl<E: Float> Default for Recordings<E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<E: Float> Recordings<E> {
    fn take(&self, rows: usize) -> Option<Recording<E>> {
        // A panic while it was held leaves it whole, here and below.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&rows)
    }

    fn put(&self, rows: usize, recording: Recording<E>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(rows, recording);
    }
}

struct Recording<E: Float> {
    tables: SharedTables<E>,
    state: State<E>,
    of: Named,
}

enum State<E: Float> {
    /// It ran once.
    Ran,
    /// The recording, and where it leaves its last rows.
    Recorded(Graph, Tensor<E>),
    /// It cannot be recorded.
    Unfit,
}

/// What a recording names by address.
#[derive(Clone, Copy, PartialEq)]
struct Named {
    states: [u64; 2],
    pages: Option<u64>,
    /// Weights and pools that were gone.
    gone: u64,
}

/// A step over its pools.
struct Running<'a, E: Float> {
    device: &'a CudaDevice<E>,
    states: &'a mut States<E>,
    pages: &'a mut Pages<E>,
    layers: StepLayers<'a, CudaDevice<E>>,
}

pub(super) fn step<E: Float>(
    device: &CudaDevice<E>,
    plan: &Plan<CudaDevice<E>>,
    (states, pages): (&mut States<E>, &mut Pages<E>),
    layers: StepLayers<'_, CudaDevice<E>>,
) -> Result<Tensor<E>, OpError> {
    let (gpu, rows) = (&device.device, plan.ids.len());
    if rows == 0 || !is_step(plan) {
        return layers(states, pages);
    }
    check::programs(0, plan, states.slots)?;
    let of = Named {
        states: [states.state.address_of(0), states.tails.address_of(0)],
        pages: pages.address(),
        gone: gpu.gone(),
    };
    let kept = device.recordings.take(rows).filter(|kept| kept.of == of);
    let taken = kept.as_ref().map(|kept| locked(&kept.tables).take(gpu, plan)).transpose()?;
    // Where a step goes on, its bodies are those of the step before, which were looked at.
    if taken != Some(Taken::GoesOn) && !bodies_lie_alike(plan, pages)? {
        return layers(states, pages);
    }
    let (tables, state) = match kept {
        Some(kept) if taken != Some(Taken::Outgrown) => (kept.tables, kept.state),
        _ => (Arc::new(Mutex::new(StepTables::new(gpu, plan).map_err(failed(OP))?)), State::Ran),
    };
    let mut running = Running { device, states, pages, layers };
    let (state, x) = match state {
        // Bodies that have just come settle in their pages first, which no recording does.
        state if taken != Some(Taken::GoesOn) => (state, running.as_any_other(&tables)?),
        State::Ran => running.recorded(&tables)?,
        State::Recorded(mut graph, x) => {
            let copy = graph.run().and_then(|()| running.copy_of(&x)).map_err(failed(OP))?;
            (State::Recorded(graph, x), copy)
        }
        State::Unfit => (State::Unfit, running.as_any_other(&tables)?),
    };
    device.recordings.put(rows, Recording { tables, state, of });
    Ok(x)
}

impl<E: Float> Running<'_, E> {
    /// All layers, launch by launch, with memory from the arena.
    fn as_any_other(&mut self, tables: &SharedTables<E>) -> Result<Tensor<E>, OpError> {
        let x = self.device.device.in_arena(true, || self.run(tables))?;
        self.copy_of(&x).map_err(failed(OP))
    }

    /// The same, recorded and then run; where that cannot be done, launch by launch.
    fn recorded(&mut self, tables: &SharedTables<E>) -> Result<(State<E>, Tensor<E>), OpError> {
        let gpu = self.device.device.clone();
        let mut made = None;
        let recorded = gpu.in_arena(true, || {
            Graph::record(&gpu, || {
                made = Some(self.run(tables));
                Ok(())
            })
        });
        match (recorded, made) {
            (Ok(mut graph), Some(Ok(x))) => {
                let copy = graph.run().and_then(|()| self.copy_of(&x)).map_err(failed(OP))?;
                Ok((State::Recorded(graph, x), copy))
            }
            _ => Ok((State::Unfit, self.as_any_other(tables)?)),
        }
    }

    /// Runs all layers, with the tables where their ops find them.
    fn run(&mut self, tables: &SharedTables<E>) -> Result<Tensor<E>, OpError> {
        let place = |tables| *self.device.step.lock().unwrap_or_else(PoisonError::into_inner) = tables;
        place(Some(Arc::clone(tables)));
        always(|| (self.layers)(self.states, self.pages), || place(None))
    }

    /// A copy outside of the arena, which the next step writes over.
    fn copy_of(&self, x: &Tensor<E>) -> crate::Result<Tensor<E>> {
        let mut values = Buffer::fresh(&self.device.device, x.values.len(), Fresh::Anything)?;
        values.copy(0, &x.values, 0, x.values.len())?;
        Ok(Tensor { values, width: x.width })
    }
}

/// Whether the pages of every body are the same in all full layers, so that one table serves them.
fn bodies_lie_alike<E: Float>(plan: &Plan<CudaDevice<E>>, pages: &Pages<E>) -> Result<bool, OpError> {
    for run in &plan.runs {
        for body in 0..run.context.bodies.len() {
            let mut first: Option<&[u32]> = None;
            for layer in pages.full_layers() {
                let (LayerParts::Full(parts), _) = check::body_of(OP, run, body, layer)? else {
                    return Err(OpError::shape(OP, "parts of a full layer", layer));
                };
                if *first.get_or_insert(&parts.pages.pages) != parts.pages.pages {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}
