//! One try at one holder: lease, then pull layer by layer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use hypic_domain::flow::ColdReason;
use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::PartSpec;
use hypic_wire::bulk::{PartError, PullFrom};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::layer::{Pulled, pull};
use crate::peers::Peers;
use crate::station::Scatter;

/// Parts by layer.
pub(crate) type Layers = BTreeMap<u16, Vec<PartSpec>>;

/// Gives a lease back when its fetch ends, however it ends.
struct Held {
    peers: Arc<dyn Peers>,
    holder: AgentId,
    lease: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.peers.release(&self.holder, self.lease);
    }
}

/// Sends the layers on in order and returns the manifest. Layers whose parts equal those in `delivered` are
/// not pulled again: equal sums are equal bytes.
pub(crate) async fn fetch(
    scatter: Arc<Scatter>,
    key: SegmentKey,
    holder: AgentId,
    ttl: Duration,
    delivered: Layers,
    layers: mpsc::Sender<Pulled>,
) -> Result<Bytes, ColdReason> {
    let endpoint = scatter.peers.endpoint(&holder).ok_or(ColdReason::Stale)?;
    let asked = timeout(scatter.limits.answer, scatter.peers.lease(&holder, key, ttl)).await;
    let leased = match asked {
        Ok(Ok(leased)) => leased.ok_or(ColdReason::Stale)?,
        Ok(Err(_)) | Err(_) => return Err(ColdReason::FetchFailed),
    };
    let _held = Held { peers: Arc::clone(&scatter.peers), holder, lease: leased.lease };
    if leased.key != key {
        return Err(ColdReason::Mismatch);
    }
    let from = PullFrom { endpoint, key, ticket: leased.ticket };
    let mut wanted = Layers::new();
    for spec in leased.parts {
        wanted.entry(spec.layer).or_default().push(spec);
    }
    wanted.retain(|layer, specs| delivered.get(layer) != Some(specs));
    // A few layers ahead of the one that is waited for: enough to keep the connections busy, and few enough
    // that a scarce budget goes to the low layers of all segments first.
    let mut pulls = stream::iter(wanted)
        .map(|(layer, specs)| pull(&scatter, from.clone(), layer, specs))
        .buffered(scatter.limits.window.max(1));
    while let Some(pulled) = pulls.next().await {
        let pulled = pulled.map_err(|error| cold(&error))?;
        // The receiver is gone only when this try is not wanted any more.
        if layers.send(pulled).await.is_err() {
            return Err(ColdReason::FetchFailed);
        }
    }
    Ok(leased.manifest)
}

/// Why a segment is cold when one of its parts did not come.
pub(crate) fn cold(error: &PartError) -> ColdReason {
    match error {
        PartError::Checksum => ColdReason::Corrupt,
        PartError::Gone => ColdReason::Stale,
        _ => ColdReason::FetchFailed,
    }
}
