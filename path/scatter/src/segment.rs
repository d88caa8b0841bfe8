//! The life of one segment: tries in turn, one of them ahead of its time when the segment is late.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hypic_domain::flow::{ColdReason, SegmentOutcome};
use hypic_domain::id::{AgentId, RequestId};
use hypic_wire::convert::order::BuildSegment;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::build::{Share, follow, order};
use crate::fetch::{Layers, fetch};
use crate::layer::{Layer, Pulled};
use crate::station::Scatter;

/// One thing that happened to one segment. `piece` is its place in the order's pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatherEvent {
    /// A layer is here, checked. Layers come in order, each as soon as it can be had. After `Failed` a layer
    /// may come again from another source: it replaces the former one. A layer that was composed already may
    /// stay so (tuples of two sources differ by rounding at most), but only the set that stands at `Manifest`
    /// is a tuple.
    Layer {
        /// Which segment.
        piece: usize,
        /// The layer.
        layer: Layer,
    },
    /// A source failed; others may go on. For counting, and to have a corrupt copy quarantined.
    Failed {
        /// Which segment.
        piece: usize,
        /// Why.
        reason: ColdReason,
        /// Whose copy.
        by: AgentId,
    },
    /// All layers are here.
    Manifest {
        /// Which segment.
        piece: usize,
        /// The codec's manifest.
        manifest: Bytes,
        /// Who sent it.
        by: AgentId,
        /// `Fetched` or `Built`.
        outcome: SegmentOutcome,
    },
    /// It will not come: the caller builds it.
    Lost {
        /// Which segment.
        piece: usize,
        /// Why it is cold; [`ColdReason::Unknown`] where nobody was to have it.
        reason: ColdReason,
        /// Whose copy was lost last.
        by: Option<AgentId>,
    },
}

/// A way to have the tuple.
pub(crate) enum Candidate {
    /// Fetch it from a holder.
    Holder(AgentId),
    /// Follow a build that was ordered in a batch.
    Ordered(Share),
    /// Order a build of this segment alone.
    Worker(AgentId),
}

/// What a segment needs to be had.
pub(crate) struct Segment {
    /// Places in the order's pieces: one document may stand in a prompt more than once.
    pub(crate) pieces: Vec<usize>,
    pub(crate) wanted: BuildSegment,
    pub(crate) request: RequestId,
    pub(crate) candidates: VecDeque<Candidate>,
    pub(crate) deadline: Instant,
}

/// A candidate at work. Dropping it cancels everything it began.
struct Try {
    by: AgentId,
    outcome: SegmentOutcome,
    layers: mpsc::Receiver<Pulled>,
    end: oneshot::Receiver<Result<Bytes, ColdReason>>,
    /// Layers of a try that is not in the lead.
    kept: Vec<Layer>,
    _task: JoinSet<()>,
}

/// What a try tells next.
enum Step {
    Layer(Pulled),
    End(Result<Bytes, ColdReason>),
}

impl Try {
    fn start(scatter: &Arc<Scatter>, segment: &Segment, candidate: Candidate, delivered: &Layers) -> Self {
        let (layers_to, layers) = mpsc::channel(1);
        let (end_to, end) = oneshot::channel();
        let left = segment.deadline.saturating_duration_since(Instant::now());
        let mut task = JoinSet::new();
        let ended = async move |work: futures::future::BoxFuture<'static, Result<Bytes, ColdReason>>| {
            // Nobody waits for the end of a try that was dropped.
            drop(end_to.send(work.await));
        };
        let (by, outcome) = match candidate {
            Candidate::Holder(holder) => {
                let (scatter, key, delivered) = (Arc::clone(scatter), segment.wanted.key, delivered.clone());
                // The lease outlives the deadline, so that the sender never frees what is being read.
                let ttl = left + Duration::from_secs(1);
                task.spawn(ended(Box::pin(fetch(scatter, key, holder.clone(), ttl, delivered, layers_to))));
                (holder, SegmentOutcome::Fetched)
            }
            Candidate::Ordered(share) => {
                let worker = share.worker.clone();
                task.spawn(ended(Box::pin(follow(Arc::clone(scatter), share, layers_to))));
                (worker, SegmentOutcome::Built { cold: ColdReason::Unknown })
            }
            Candidate::Worker(worker) => {
                let wanted = vec![segment.wanted.clone()];
                let shares = order(scatter, &worker, segment.request.clone(), wanted, left);
                let scatter = Arc::clone(scatter);
                task.spawn(ended(Box::pin(async move {
                    let share = shares.into_iter().next().ok_or(ColdReason::FetchFailed)?;
                    follow(scatter, share, layers_to).await
                })));
                (worker, SegmentOutcome::Built { cold: ColdReason::Unknown })
            }
        };
        Self { by, outcome, layers, end, kept: Vec::new(), _task: task }
    }

    /// Layers first: the end counts when all of them were seen. Safe to drop while it waits.
    async fn step(&mut self) -> Step {
        match self.layers.recv().await {
            Some(pulled) => Step::Layer(pulled),
            None => Step::End((&mut self.end).await.unwrap_or(Err(ColdReason::FetchFailed))),
        }
    }
}

/// Has the segment, or says that the caller must build it. Exactly one `Manifest` or `Lost` per piece.
pub(crate) async fn drive(scatter: Arc<Scatter>, mut segment: Segment, events: mpsc::Sender<GatherEvent>) {
    let started = Instant::now();
    let late = started + (segment.deadline - started).mul_f64(scatter.limits.hedge.clamp(0.0, 1.0));
    let tell = Tell { pieces: segment.pieces.clone(), events };
    let mut delivered = Layers::new();
    let mut spare: Option<Try> = None;
    let (mut hedged, mut why, mut who) = (false, ColdReason::Unknown, None);
    'lead: loop {
        let next = spare.take().or_else(|| {
            let candidate = segment.candidates.pop_front()?;
            Some(Try::start(&scatter, &segment, candidate, &delivered))
        });
        let Some(mut lead) = next else { return tell.lost(why, who).await };
        for layer in std::mem::take(&mut lead.kept) {
            tell.layer(&mut delivered, layer).await;
        }
        loop {
            let (winner, end) = tokio::select! {
                biased;
                () = sleep_until(segment.deadline) => {
                    return tell.lost(ColdReason::FetchFailed, Some(lead.by)).await;
                }
                step = lead.step() => match step {
                    Step::Layer(Pulled { layer, lease }) => {
                        tell.layer(&mut delivered, layer).await;
                        // Only now: what waits for the caller is still in flight.
                        drop(lease);
                        continue;
                    }
                    Step::End(end) => (None, end),
                },
                step = step_of(&mut spare) => match step {
                    Step::Layer(Pulled { layer, lease: _ }) => {
                        spare.iter_mut().for_each(|spare| spare.kept.push(layer.clone()));
                        continue;
                    }
                    Step::End(end) => (spare.take(), end),
                },
                () = sleep_until(late), if !hedged && !segment.candidates.is_empty() => {
                    hedged = true;
                    if let Some(candidate) = segment.candidates.pop_front() {
                        spare = Some(Try::start(&scatter, &segment, candidate, &delivered));
                    }
                    continue;
                }
            };
            let from_spare = winner.is_some();
            let ended = winner.as_ref().unwrap_or(&lead);
            match end {
                Ok(manifest) => {
                    let (by, outcome) = (ended.by.clone(), ended.outcome);
                    for layer in winner.map(|winner| winner.kept).unwrap_or_default() {
                        tell.layer(&mut delivered, layer).await;
                    }
                    return tell.whole(manifest, by, outcome).await;
                }
                Err(reason) => {
                    tell.failed(reason, ended.by.clone()).await;
                    (why, who) = (reason, Some(ended.by.clone()));
                    if !from_spare {
                        continue 'lead;
                    }
                }
            }
        }
    }
}

async fn step_of(spare: &mut Option<Try>) -> Step {
    match spare {
        Some(spare) => spare.step().await,
        None => std::future::pending().await,
    }
}

/// Tells the caller, once per piece. A caller that does not listen any more has dropped the whole gathering.
struct Tell {
    pieces: Vec<usize>,
    events: mpsc::Sender<GatherEvent>,
}

impl Tell {
    async fn layer(&self, delivered: &mut Layers, layer: Layer) {
        delivered.insert(layer.layer, layer.parts.iter().map(|(spec, _)| spec.clone()).collect());
        self.each(|piece| GatherEvent::Layer { piece, layer: layer.clone() }).await;
    }

    async fn whole(&self, manifest: Bytes, by: AgentId, outcome: SegmentOutcome) {
        self.each(|piece| GatherEvent::Manifest {
            piece,
            manifest: manifest.clone(),
            by: by.clone(),
            outcome,
        })
        .await;
    }

    async fn failed(&self, reason: ColdReason, by: AgentId) {
        self.each(|piece| GatherEvent::Failed { piece, reason, by: by.clone() }).await;
    }

    async fn lost(&self, reason: ColdReason, by: Option<AgentId>) {
        self.each(|piece| GatherEvent::Lost { piece, reason, by: by.clone() }).await;
    }

    async fn each(&self, event: impl Fn(usize) -> GatherEvent) {
        for &piece in &self.pieces {
            drop(self.events.send(event(piece)).await);
        }
    }
}
