//! Builds on other agents: one stream per worker, taken apart by segment, each followed layer by layer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use hypic_domain::flow::ColdReason;
use hypic_domain::id::{AgentId, RequestId};
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::PartSpec;
use hypic_domain::unit;
use hypic_wire::bulk::{PartError, PullFrom};
use hypic_wire::convert::order::BuildSegment;
use hypic_wire::convert::tuple::BuildEvent;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fetch::cold;
use crate::layer::{Pulled, pull, size};
use crate::station::Scatter;

/// One segment's share of a running batch. The batch is cancelled when the last share is dropped.
pub(crate) struct Share {
    pub(crate) worker: AgentId,
    key: SegmentKey,
    events: mpsc::UnboundedReceiver<BuildEvent>,
    credit: mpsc::UnboundedSender<unit::Bytes>,
    /// Bytes announced and not given back.
    owed: u64,
    _batch: Arc<JoinSet<()>>,
}

/// Has `segments` built by `worker`; one share per segment, in order.
pub(crate) fn order(
    scatter: &Arc<Scatter>,
    worker: &AgentId,
    id: RequestId,
    segments: Vec<BuildSegment>,
    deadline: Duration,
) -> Vec<Share> {
    let (credit, more) = mpsc::unbounded_channel();
    let (senders, receivers): (HashMap<_, _>, Vec<_>) = segments
        .iter()
        .map(|segment| {
            let (sender, receiver) = mpsc::unbounded_channel();
            ((segment.key, sender), (segment.key, receiver))
        })
        .unzip();
    let building = scatter.peers.build(worker, id, segments, deadline, (scatter.limits.credit, more));
    let back = credit.clone();
    let mut batch = JoinSet::new();
    batch.spawn(async move {
        // Without a stream the senders are dropped, which every share sees as the end of its build.
        let Ok(mut events) = building.await else { return };
        while let Some(Ok(event)) = events.next().await {
            let len = match &event {
                BuildEvent::Part { spec, .. } => spec.len,
                BuildEvent::Built { .. } | BuildEvent::Failed { .. } => 0,
            };
            let followed = senders.get(&event.key()).is_some_and(|sender| sender.send(event).is_ok());
            if !followed && back.send(unit::Bytes(len)).is_err() {
                return;
            }
        }
    });
    let batch = Arc::new(batch);
    let share = |(key, events)| Share {
        worker: worker.clone(),
        key,
        events,
        credit: credit.clone(),
        owed: 0,
        _batch: Arc::clone(&batch),
    };
    receivers.into_iter().map(share).collect()
}

impl Share {
    async fn next(&mut self) -> Option<BuildEvent> {
        let event = self.events.recv().await;
        if let Some(BuildEvent::Part { spec, .. }) = &event {
            self.owed = self.owed.saturating_add(spec.len);
        }
        event
    }

    /// Lets the worker go on by so many bytes. It may be done already and not listen.
    fn settle(&mut self, bytes: unit::Bytes) {
        self.owed = self.owed.saturating_sub(bytes.0);
        self.credit.send(bytes).ok();
    }
}

impl Drop for Share {
    /// The rest of the batch must not starve on what this segment will never pull.
    fn drop(&mut self) {
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            if let BuildEvent::Part { spec, .. } = event {
                self.owed = self.owed.saturating_add(spec.len);
            }
        }
        self.settle(unit::Bytes(self.owed));
    }
}

/// Pulls each layer as soon as all of it is announced, sends the layers on in order and returns the manifest.
pub(crate) async fn follow(
    scatter: Arc<Scatter>,
    mut share: Share,
    layers: mpsc::Sender<Pulled>,
) -> Result<Bytes, ColdReason> {
    let endpoint = scatter.peers.endpoint(&share.worker).ok_or(ColdReason::FetchFailed)?;
    let mut open: BTreeMap<u16, Vec<PartSpec>> = BTreeMap::new();
    let mut announced = 0;
    let mut manifest = None;
    let mut pulls: FuturesOrdered<BoxFuture<'_, Result<Pulled, PartError>>> = FuturesOrdered::new();
    loop {
        tokio::select! {
            Some(pulled) = pulls.next() => {
                let pulled = pulled.map_err(|error| cold(&error))?;
                let bytes = pulled.layer.parts.iter().map(|(spec, _)| unit::Bytes(spec.len)).sum();
                // The receiver is gone only when this try is not wanted any more.
                if layers.send(pulled).await.is_err() {
                    return Err(ColdReason::FetchFailed);
                }
                share.settle(bytes);
            }
            event = share.next(), if manifest.is_none() => match event {
                Some(BuildEvent::Part { key: _, spec, ticket, layer_parts }) => {
                    announced += 1;
                    let layer = spec.layer;
                    let parts = open.entry(layer).or_default();
                    parts.push(spec);
                    if parts.len() >= layer_parts as usize {
                        let specs = open.remove(&layer).unwrap_or_default();
                        tracing::trace!(layer, bytes = size(&specs).0, "pull a built layer");
                        let from = PullFrom { endpoint: endpoint.clone(), key: share.key, ticket };
                        pulls.push_back(Box::pin(pull(&scatter, from, layer, specs)));
                    }
                }
                Some(BuildEvent::Built { key: _, manifest: bytes, parts }) => {
                    if announced != parts || !open.is_empty() {
                        return Err(ColdReason::FetchFailed);
                    }
                    manifest = Some(bytes);
                }
                Some(BuildEvent::Failed { key: _, reason }) => {
                    tracing::warn!(worker = %share.worker, reason, "a build failed");
                    return Err(ColdReason::FetchFailed);
                }
                None => return Err(ColdReason::FetchFailed),
            },
            else => return manifest.ok_or(ColdReason::FetchFailed),
        }
    }
}
