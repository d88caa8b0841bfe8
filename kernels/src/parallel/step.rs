//! What a rank sees of a step: its parts of one layer of the bodies, and its recordings.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::TensorParallel;
use crate::op::Device;
use crate::parallel::Rank;
use crate::plan::{BodyLayers, Context, PlacedBody, Plan, Record, Run};

/// Which layer of which rank.
type Of = (usize, usize);

/// A step as a linear layer sees it: without pages and positions, which decode has many of.
pub(super) fn of_linear<D: Rank>(plan: &Plan<TensorParallel<D>>, of: Of) -> Plan<D> {
    step(plan, of, |context| Context { pages: Vec::new(), live: Vec::new(), bodies: bodies(context, of) })
}

/// A step as a full layer sees it.
pub(super) fn of_full<D: Rank>(plan: &Plan<TensorParallel<D>>, of: Of) -> Plan<D> {
    step(plan, of, |found| context(found, of))
}

/// A run's context.
pub(super) fn context<D: Rank>(context: &Context<TensorParallel<D>>, of: Of) -> Context<D> {
    Context { pages: context.pages.clone(), live: context.live.clone(), bodies: bodies(context, of) }
}

fn step<D: Rank>(
    plan: &Plan<TensorParallel<D>>,
    of: Of,
    context: impl Fn(&Context<TensorParallel<D>>) -> Context<D>,
) -> Plan<D> {
    let run = |run: &Run<TensorParallel<D>>| Run {
        rows: run.rows.clone(),
        slot: run.slot,
        context: context(&run.context),
        ops: run.ops.clone(),
        record: run.record.as_ref().map(|record| recorded(record, of)),
    };
    Plan { ids: plan.ids.clone(), runs: plan.runs.iter().map(run).collect() }
}

fn recorded<D: Rank>(record: &Record<TensorParallel<D>>, (_, rank): Of) -> Record<D> {
    // A panic while it was held leaves the list whole: nobody changes it.
    let recordings = record.recording.lock().unwrap_or_else(PoisonError::into_inner);
    Record { recording: Arc::clone(&recordings[rank]), body: Range::clone(&record.body), whole: record.whole }
}

fn bodies<D: Rank>(context: &Context<TensorParallel<D>>, (layer, rank): Of) -> Vec<PlacedBody<D>> {
    let body = |placed: &PlacedBody<TensorParallel<D>>| {
        let layers = BodyLayers::<D>::empty(layer + 1);
        // What has not arrived is missing on the rank too, which says so.
        if let Some(parts) = placed.layers.layer(layer) {
            layers.share(layer, Arc::<<D as Device>::LayerParts>::clone(&parts[rank]));
        }
        PlacedBody { layers: Arc::new(layers), start: placed.start, len: placed.len }
    };
    context.bodies.iter().map(body).collect()
}
