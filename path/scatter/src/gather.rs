//! From an order to what comes of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hypic_domain::flow::{GatheredSegments, Order, Source};
use hypic_domain::id::AgentId;
use hypic_wire::convert::order::BuildSegment;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::build;
use crate::segment::{Candidate, GatherEvent, Segment, drive};
use crate::station::Scatter;

/// How one segment is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// The caller has it.
    Local,
    /// It comes by events, and ends with `Manifest` or `Lost`.
    Coming,
}

/// What an order led to.
pub struct Gathered {
    /// Beside each piece of the order.
    pub segments: GatheredSegments<Handle>,
    /// What comes.
    pub events: GatherEvents,
}

/// The events of one request. Dropping it cancels pulls and remote builds.
pub struct GatherEvents {
    events: mpsc::Receiver<GatherEvent>,
    _work: JoinSet<()>,
}

impl GatherEvents {
    /// The next event; `None` when every segment has ended. Safe to drop while it waits.
    pub async fn next(&mut self) -> Option<GatherEvent> {
        self.events.recv().await
    }
}

impl Scatter {
    /// Starts gathering the segments of an order and returns at once. Must be called on a tokio runtime.
    pub fn gather(self: &Arc<Self>, order: &Order) -> Gathered {
        let handle = |source: &Option<Source>| match source {
            None => None,
            Some(Source::Local) => Some(Handle::Local),
            Some(Source::Fetch { .. } | Source::Build { .. } | Source::BuildHere) => Some(Handle::Coming),
        };
        let segments = GatheredSegments { handles: order.sources.iter().map(handle).collect() };
        let now = Instant::now();
        let left = order.deadline.and_then(|left| Duration::try_from_secs_f64(left.0 / 1e3).ok());
        let until = |bound: Duration| now + left.map_or(bound, |left| left.min(bound));

        // One segment per key, in prompt order.
        let mut places: HashMap<_, usize> = HashMap::new();
        let mut wanted: Vec<(Segment, Source)> = Vec::new();
        for (piece, source) in order.sources.iter().enumerate() {
            let (Some(source), Some(of)) = (source, order.pieces.get(piece)) else { continue };
            let (Some(key), false) = (of.key, *source == Source::Local) else { continue };
            if let Some(&place) = places.get(&key) {
                wanted[place].0.pieces.push(piece);
                continue;
            }
            places.insert(key, wanted.len());
            let (candidates, bound) = match source {
                Source::Fetch { holders } => {
                    let others = holders.iter().filter(|holder| **holder != self.me).cloned();
                    (others.map(Candidate::Holder).collect(), self.limits.fetch)
                }
                _ => (VecDeque::new(), self.limits.build),
            };
            let segment = Segment {
                pieces: vec![piece],
                wanted: BuildSegment { key, scope: order.scope, ids: of.ids.clone() },
                request: order.id.clone(),
                candidates,
                deadline: until(bound),
            };
            wanted.push((segment, source.clone()));
        }

        let (tell, events) = mpsc::channel(self.limits.events.max(1));
        let mut work = JoinSet::new();
        let (fetched, built): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(_, source)| matches!(source, Source::Fetch { .. }));
        for (segment, _) in fetched {
            work.spawn(drive(Arc::clone(self), segment, tell.clone()));
        }
        if !built.is_empty() {
            work.spawn(Arc::clone(self).build(built, tell));
        }
        Gathered { segments, events: GatherEvents { events, _work: work } }
    }

    /// Asks who may build each cold segment, orders the builds of each builder as one batch, and follows them.
    async fn build(self: Arc<Self>, cold: Vec<(Segment, Source)>, tell: mpsc::Sender<GatherEvent>) {
        let wished = |source: &Source| match source {
            Source::Build { worker } => worker.clone(),
            _ => self.me.clone(),
        };
        let workers: Vec<AgentId> = {
            let mut workers: Vec<_> = cold.iter().map(|(_, source)| wished(source)).collect();
            workers.sort();
            workers.dedup();
            workers.retain(|worker| *worker != self.me);
            workers
        };
        let wishes: Vec<_> =
            cold.iter().map(|(segment, source)| (segment.wanted.key, wished(source))).collect();
        let asked = self.index.grant(wishes.clone(), self.limits.build);
        // An owner that is away costs single-flight and nothing else.
        let granted = timeout(self.limits.answer, asked).await.unwrap_or_default();

        let mut batches: Vec<(AgentId, Vec<Segment>)> = Vec::new();
        for (place, ((mut segment, _), (key, wished))) in cold.into_iter().zip(wishes).enumerate() {
            let builder = granted.get(place).cloned().flatten().unwrap_or(wished);
            if builder != self.me {
                // Should it fail: the others, in an order that other requests for this key share.
                let others: Vec<_> = workers.iter().filter(|worker| **worker != builder).cloned().collect();
                let turn = if others.is_empty() { 0 } else { usize::from(key.slot()) % others.len() };
                let turned = others.iter().cycle().skip(turn).take(others.len());
                segment.candidates = turned.cloned().map(Candidate::Worker).collect();
            }
            match batches.iter_mut().find(|(agent, _)| *agent == builder) {
                Some((_, batch)) => batch.push(segment),
                None => batches.push((builder, vec![segment])),
            }
        }

        let mut drives = Vec::new();
        for (builder, mut batch) in batches {
            if builder != self.me {
                let left = batch.iter().map(|segment| segment.deadline).max().unwrap_or_else(Instant::now);
                let left = left.saturating_duration_since(Instant::now());
                let (Some(id), segments) =
                    (batch.first().map(|segment| segment.request.clone()), wanted_of(&batch))
                else {
                    continue;
                };
                for (segment, share) in
                    batch.iter_mut().zip(build::order(&self, &builder, id, segments, left))
                {
                    segment.candidates.push_front(Candidate::Ordered(share));
                }
            }
            // Without candidates a segment is lost at once: the caller builds it.
            drives.extend(batch.into_iter().map(|segment| drive(Arc::clone(&self), segment, tell.clone())));
        }
        drop(tell);
        join_all(drives).await;
    }
}

fn wanted_of(batch: &[Segment]) -> Vec<BuildSegment> {
    batch.iter().map(|segment| segment.wanted.clone()).collect()
}
