//! Runs in the form of prefill: long ones, and builds.
//!
//! Where the device has chunks of 64, all runs that the form serves go through one launch, and the summaries of bodies
//! that begin and end in the step go straight to their tiles. All others are launched one by one. A run gets the same
//! bits in company as alone.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use hypic_kernels::plan::{Record, Run};

use super::CudaDevice;
use super::record::{LayerRecord, live_heads};
use crate::choice::gdn_pieces;
use crate::gdn_chunks::{gdn_chunks_in_pool, gdn_chunks_one};
use crate::memory::Float;
use crate::norm::add_gates;
use crate::pack::Tiles;
use crate::programs::Pool;
use crate::recurrence::{Form, advance_one};
use crate::view::{CHUNK, Placed};
use crate::{Buffer, Device, Recurrence, Result, Rows, Sequences, StoredAs, Summaries, has_gdn_chunks};

/// Runs of more rows than this, without bodies, are prefilled by themselves.
pub(super) const SHORT: usize = 32;

/// Advances `runs` over states in `pool`, and their recordings of `layer`.
pub(super) fn advance_all<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (runs, layer): (&[&Run<CudaDevice<E>>], usize),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let Pool { state, first, stride } = pool;
    let mut together = Vec::new();
    for run in runs {
        let at = first + run.slot * stride;
        match form_of(device, rows, run) {
            Launch::Together => together.push(*run),
            Launch::InPieces(pieces) => {
                gdn_chunks_one(device, rows, (run.rows.clone(), pieces), (&mut *state, at), out)?;
            }
            Launch::Alone => advance(device, rows, (run, layer), (&mut *state, at), out)?,
        }
    }
    if together.is_empty() {
        return Ok(());
    }
    advance_together(device, rows, (&together, layer), Pool { state, first, stride }, out)
}

/// How a run is launched: by what it is alone, so that its results are, too.
enum Launch {
    /// In chunks of 64, with others.
    Together,
    /// In chunks of 64, in so many pieces that fill the device.
    InPieces(usize),
    /// In chunks of 16 or token by token.
    Alone,
}

fn form_of<E: Float>(device: &Device, rows: Rows<'_, E>, run: &Run<CudaDevice<E>>) -> Launch {
    // Chunks multiply in fp16; a device that computes in fp32 does not.
    let has_form = E::NAME != f32::NAME && has_gdn_chunks(rows.family, rows.shape, device.capability());
    if !has_form || run.rows.len() <= SHORT {
        return Launch::Alone;
    }
    match recorded(run) {
        Some(record) if record.whole.is_none() || record.body.start - run.rows.start >= CHUNK => {
            Launch::Alone
        }
        Some(_) => Launch::Together,
        None => match gdn_pieces(run.rows.len(), rows.shape.heads, device.multiprocessors()) {
            pieces @ 2.. => Launch::InPieces(pieces),
            _ => Launch::Together,
        },
    }
}

/// What of a run is recorded in this step.
fn recorded<E: Float>(run: &Run<CudaDevice<E>>) -> Option<&Record<CudaDevice<E>>> {
    run.record.as_ref().filter(|record| !record.body.is_empty())
}

fn advance_together<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (runs, layer): (&[&Run<CudaDevice<E>>], usize),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let placed: Vec<Placed> = runs
        .iter()
        .map(|run| Placed {
            rows: run.rows.clone(),
            before_body: recorded(run).map_or(0, |record| record.body.start - run.rows.start),
            fresh: false,
            slot: run.slot,
        })
        .collect();
    let mut tiles = tiles_for(device, rows, runs)?;
    gdn_chunks_in_pool(device, rows, (&placed, &mut tiles), pool, out)?;
    for (run, tiles) in runs.iter().zip(tiles) {
        if let (Some(record), Some(tiles)) = (recorded(run), tiles) {
            // As in `advance`.
            let mut recording = record.recording.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = recording.layers.get_mut(layer) {
                *place = Some(LayerRecord::Whole(Arc::new(tiles)));
            }
        }
    }
    Ok(())
}

/// Room for the summaries of `runs`, none where nothing is recorded. Waits for the gates, which say which heads have a
/// `T`.
fn tiles_for<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    runs: &[&Run<CudaDevice<E>>],
) -> Result<Vec<Option<Tiles>>> {
    let shape = rows.shape;
    let bodies: Vec<Range<usize>> =
        runs.iter().filter_map(|run| recorded(run)).map(|record| record.body.clone()).collect();
    let bounds = if bodies.is_empty() {
        Vec::new()
    } else {
        let mut bounds = Buffer::zeros(device, bodies.len() * shape.heads)?;
        add_gates(device, rows.gate, &mut bounds, &bodies)?;
        bounds.read()?
    };
    let mut bounds = bounds.chunks_exact(shape.heads);
    let room = |run: &&Run<CudaDevice<E>>| {
        let skip_below = recorded(run).and_then(|record| record.whole);
        skip_below
            .zip(skip_below.and_then(|_| bounds.next()))
            .map(|(skip_below, bounds)| {
                let live = live_heads(bounds, skip_below);
                Tiles::fresh(device, &live, shape.width, StoredAs::F16)
            })
            .transpose()
    };
    runs.iter().map(room).collect()
}

/// Advances the states from value `at` on over all rows of a run, and its recording with them.
fn advance<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (run, layer): (&Run<CudaDevice<E>>, usize),
    (state, at): (&mut Buffer<f32>, usize),
    out: &mut Buffer<E>,
) -> Result<()> {
    let form = if E::NAME == f32::NAME || run.rows.len() <= SHORT { Form::Tokens } else { Form::Chunks };
    let Some(Record { recording, body, .. }) = recorded(run) else {
        let sequences = &Sequences::one(device, run.rows.clone(), 0)?;
        return advance_one(device, Recurrence { rows, sequences, state, summaries: None, out }, form, at);
    };
    let sequences = &Sequences::one(device, run.rows.clone(), body.start - run.rows.start)?;
    // The recording is shared only with the engine, which reads it between steps; a poisoned lock means that a step
    // died, and its build is thrown away by the engine.
    let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Some(record)) = recording.layers.get_mut(layer) else { return Ok(()) };
    let record = record.open(device, (rows.shape.heads, rows.shape.width))?;
    let summaries =
        Summaries { state: &mut record.state, transition: &mut record.transition, live: &record.live };
    let run = Recurrence { rows, sequences, state, summaries: Some(summaries), out };
    advance_one(device, run, form, at)?;
    add_gates(device, rows.gate, &mut record.bound, std::slice::from_ref(body))
}
