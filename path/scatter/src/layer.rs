//! One layer of one tuple on its way.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hypic_domain::tuple::PartSpec;
use hypic_domain::unit;
use hypic_wire::bulk::{Lease, OnPart, PartError, PullFrom};

use crate::station::Scatter;

/// The parts of one layer, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Which layer of the model.
    pub layer: u16,
    /// Its parts, in manifest order.
    pub parts: Vec<(PartSpec, Bytes)>,
}

/// A layer with the share of the budget that it still takes.
pub(crate) struct Pulled {
    pub(crate) layer: Layer,
    pub(crate) lease: Option<Lease>,
}

/// Pulls all parts of a layer; the first failure fails it.
pub(crate) async fn pull(
    scatter: &Scatter,
    from: PullFrom,
    layer: u16,
    specs: Vec<PartSpec>,
) -> Result<Pulled, PartError> {
    let lease = scatter.budget.lease(size(&specs)).await;
    let arrived = Arc::new(Mutex::new(vec![None; specs.len()]));
    let put = Arc::clone(&arrived);
    let on_part: OnPart = Arc::new(move |index, outcome| {
        if let Some(place) = put.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *place = outcome.ok();
        }
    });
    let transfer = scatter.transport.fetch(from, specs.clone(), lease, scatter.limits.stall, on_part);
    // Dropping this future drops the transfer, which gives the lease back once the transport is quiet.
    let (lease, outcome) = transfer.quiesce().await;
    outcome?;
    let arrived = std::mem::take(&mut *arrived.lock().unwrap_or_else(PoisonError::into_inner));
    let whole = |(spec, bytes): (PartSpec, Option<Bytes>)| bytes.map(|bytes| (spec, bytes));
    let parts = specs.into_iter().zip(arrived).map(whole).collect::<Option<_>>();
    let parts = parts.ok_or(PartError::Malformed { why: "the transport left out a part" })?;
    Ok(Pulled { layer: Layer { layer, parts }, lease })
}

/// Bytes of all parts.
pub(crate) fn size(specs: &[PartSpec]) -> unit::Bytes {
    unit::Bytes(specs.iter().fold(0, |sum: u64, spec| sum.saturating_add(spec.len)))
}
