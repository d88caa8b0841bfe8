//! One order, from gathering to tokens: scatter → compose + seam → decode.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use hypic_domain::flow::{ColdReason, Order, Piece, SegmentOutcome, Source, TokenEvent};
use hypic_domain::id::AgentId;
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::tier::Tier;
use hypic_scatter::{GatherEvent, GatherEvents, Layer};
use hypic_store::codec::{Manifest, Part, TupleHead};
use hypic_store::{Hit, StoreError, StoredTuple};
use tokio::task::block_in_place;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use crate::agent::Agent;
use crate::engine::{EngineError, Feed, TokenStream};

/// The tokens of an order. Dropping it ends pulls, remote builds and the engine's work within one step.
pub struct Answer {
    tokens: TokenStream,
    _ended: DropGuard,
}

impl Stream for Answer {
    type Item = Result<TokenEvent, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.tokens).poll_next(cx)
    }
}

/// Starts an order.
pub fn generate(agent: &Arc<Agent>, mut order: Order) -> Answer {
    let (feed, tokens) = agent.engine.generate(order.clone());
    take_what_is_here(agent, &feed, &mut order);
    let wishes = wishes(agent, &order);
    let gather = gather(Arc::clone(agent), feed, order).instrument(tracing::info_span!("scatter"));
    let ended = CancellationToken::new();
    tokio::spawn({
        let (agent, ended) = (Arc::clone(agent), ended.clone());
        async move {
            ended.run_until_cancelled(gather).await;
            give_back(&agent, wishes, &ended).await;
        }
    });
    Answer { tokens, _ended: ended.drop_guard() }
}

/// Which builds the index is asked to grant for an order.
fn wishes(agent: &Agent, order: &Order) -> Vec<(SegmentKey, AgentId)> {
    let wish = |(piece, source): (&Piece, &Option<Source>)| {
        let builder = match source.as_ref()? {
            Source::Build { worker } => worker.clone(),
            Source::BuildHere => agent.membership.me.clone(),
            Source::Local | Source::Fetch { .. } => return None,
        };
        Some((piece.key?, builder))
    };
    order.pieces.iter().zip(&order.sources).filter_map(wish).collect()
}

/// When the answer has ended, gives back the grants of what was not built: a tuple that is here was, and its
/// announcement ends its grant.
async fn give_back(agent: &Agent, mut wishes: Vec<(SegmentKey, AgentId)>, ended: &CancellationToken) {
    if wishes.is_empty() {
        return;
    }
    ended.cancelled().await;
    wishes.retain(|(key, _)| agent.store.locate(key).is_none());
    agent.index.give_back(&wishes).await;
}

/// What the router does not know to be here may be here by now; what the engine does not compose needs no source.
fn take_what_is_here(agent: &Agent, feed: &Feed, order: &mut Order) {
    let mut sources = vec![None; order.pieces.len()];
    for (piece, head) in feed.wanted() {
        let ordered = order.sources.get(piece).cloned().flatten();
        let here = agent.store.locate(&head.key).is_some();
        sources[piece] = Some(if here { Source::Local } else { ordered.unwrap_or(Source::BuildHere) });
    }
    order.sources = sources;
}

/// Brings every wanted tuple to the engine, or tells it to build.
async fn gather(agent: Arc<Agent>, feed: Feed, order: Order) {
    let gathered = agent.scatter.gather(&order);
    bring_local(&agent, &feed, &order).await;
    Arrivals { agent: &agent, feed: &feed, scope: &order.scope, parts: HashMap::new() }
        .follow(gathered.events)
        .await;
}

/// Brings what is here: tuples in memory together, layer by layer, so that the first layers can be computed while later
/// ones are on their way to the device; then those from the drive, each when it is read.
async fn bring_local(agent: &Agent, feed: &Feed, order: &Order) {
    let is_local = |piece: &usize| order.sources.get(*piece) == Some(&Some(Source::Local));
    let local = feed.wanted().filter(|(piece, _)| is_local(piece));
    let (slow, quick): (Vec<_>, Vec<_>) =
        local.partition(|(_, head)| matches!(agent.store.locate(&head.key), Some((Tier::Disk, _))));
    let mut hits = Vec::with_capacity(quick.len());
    for (piece, head) in quick {
        hits.extend(find_local(agent, feed, piece, head).await.map(|hit| (piece, hit)));
    }
    block_in_place(|| feed_layers(agent, feed, hits));
    for (piece, head) in slow {
        if let Some(hit) = find_local(agent, feed, piece, head).await {
            block_in_place(|| feed_layers(agent, feed, vec![(piece, hit)]));
        }
    }
}

async fn find_local(agent: &Agent, feed: &Feed, piece: usize, head: &TupleHead) -> Option<Hit> {
    match agent.held(head.key, Some(Arc::clone(&head.ids))).await {
        Ok(hit) => return Some(hit),
        // The index, or the look a moment ago, knew more than is true now.
        Err(ColdReason::Unknown) => feed.lost(piece, ColdReason::Stale),
        Err(reason) => feed.lost(piece, reason),
    }
    None
}

/// All tuples of `hits`, the first layer of each first.
fn feed_layers(agent: &Agent, feed: &Feed, mut hits: Vec<(usize, Hit)>) {
    let layers = hits.iter().map(|(_, hit)| hit.tuple.head().layers.len()).max().unwrap_or(0);
    for layer in 0..layers {
        hits.retain(|(piece, hit)| match feed.layer(*piece, layer, hit.tuple.layer(layer as u16)) {
            Ok(()) => true,
            Err(error) => {
                let key = hit.tuple.key();
                tracing::warn!(%key, %error, "a stored tuple cannot be used");
                agent.store.remove(key);
                feed.lost(*piece, ColdReason::Corrupt);
                false
            }
        });
    }
    for (piece, hit) in hits {
        feed.arrived(piece, SegmentOutcome::Hit { tier: hit.tier }, None);
    }
}

/// What has come of each piece so far.
struct Arrivals<'a> {
    agent: &'a Agent,
    feed: &'a Feed,
    scope: &'a Scope,
    parts: HashMap<usize, Vec<Part>>,
}

impl Arrivals<'_> {
    async fn follow(mut self, mut events: GatherEvents) {
        while let Some(event) = events.next().await {
            match event {
                GatherEvent::Layer { piece, layer } => self.layer(piece, layer),
                GatherEvent::Failed { piece, reason, by } => {
                    tracing::debug!(piece, ?reason, %by, "a source failed");
                    self.agent.metrics.source_failed(reason);
                }
                GatherEvent::Manifest { piece, manifest, by, outcome } => {
                    self.manifest(piece, &manifest, by, outcome);
                }
                GatherEvent::Lost { piece, reason, by: _ } => {
                    self.parts.remove(&piece);
                    self.feed.lost(piece, reason);
                }
            }
        }
    }

    fn layer(&mut self, piece: usize, layer: Layer) {
        let arrived = self.parts.entry(piece).or_default();
        // From another source: what follows belongs to another tuple.
        arrived.retain(|part| part.spec().layer < layer.layer);
        let parts: Result<Vec<Part>, StoreError> =
            layer.parts.into_iter().map(|(spec, bytes)| Part::checked_in_transit(spec, bytes)).collect();
        match parts {
            Ok(parts) => {
                // A layer that does not decode shows at the manifest, with the rest of its tuple.
                if let Err(error) =
                    block_in_place(|| self.feed.layer(piece, usize::from(layer.layer), &parts))
                {
                    tracing::debug!(piece, %error, "a layer cannot be used");
                }
                arrived.extend(parts);
            }
            Err(error) => tracing::debug!(piece, %error, "a layer cannot be used"),
        }
    }

    fn manifest(&mut self, piece: usize, manifest: &[u8], by: AgentId, outcome: SegmentOutcome) {
        let parts = self.parts.remove(&piece).unwrap_or_default();
        match self.assemble(piece, manifest, parts) {
            Ok(tuple) => {
                self.agent.metrics.received(&tuple);
                self.agent.keep(&tuple, self.scope);
                self.feed.arrived(piece, outcome, Some(by));
            }
            Err(reason) => {
                tracing::warn!(piece, ?reason, %by, "a tuple from another agent is of no use");
                self.agent.metrics.source_failed(reason);
                self.feed.lost(piece, reason);
            }
        }
    }

    fn assemble(&self, piece: usize, manifest: &[u8], parts: Vec<Part>) -> Result<StoredTuple, ColdReason> {
        let manifest = Manifest::decode(manifest).map_err(|_| ColdReason::Corrupt)?;
        let Some((_, head)) = self.feed.wanted().find(|(wanted, _)| *wanted == piece) else {
            return Err(ColdReason::Mismatch);
        };
        let found = &manifest.head;
        let same = (found.identity, found.key, found.body) == (head.identity, head.key, head.body)
            && found.ids == head.ids
            && found.layers == head.layers
            && found.format == head.format;
        if !same {
            return Err(ColdReason::Mismatch);
        }
        StoredTuple::assemble(manifest, parts).map_err(|_| ColdReason::Corrupt)
    }
}
