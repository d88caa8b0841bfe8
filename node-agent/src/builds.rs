//! Building for others: segments of a combine agent, announced part by part as they are done.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hypic_domain::key::SegmentKey;
use hypic_domain::unit::Millis;
use hypic_store::StoredTuple;
use hypic_store::codec::Part;
use hypic_wire::convert::order::{BuildOrder, BuildSegment};
use hypic_wire::convert::tuple::BuildEvent;
use tokio::sync::mpsc;

use crate::agent::Agent;
use crate::engine;

/// Longest life of an order and of what it announced; the build's end ends it sooner.
const LEASE: Duration = Duration::from_secs(120);

/// Builds an order's segments and says what is done through `tell`. Ends, and cancels what nobody else wants,
/// when the asker is gone or the order's time is over.
pub async fn build(
    agent: Arc<Agent>,
    order: BuildOrder,
    credits: mpsc::UnboundedReceiver<u64>,
    tell: mpsc::Sender<BuildEvent>,
) {
    let closed = tell.clone();
    let deadline = time_of(order.deadline);
    let mut announced = Announced {
        agent: Arc::clone(&agent),
        tell,
        credit: order.credit.0,
        credits,
        ahead: VecDeque::new(),
        leases: HashMap::new(),
    };
    tokio::select! {
        () = announced.run(order) => {}
        () = closed.closed() => {}
        () = tokio::time::sleep(deadline) => tracing::debug!("a build order ran out of time"),
    }
}

/// As long as the asker says, but not for ever: one that takes nothing would hold what is built for it.
fn time_of(deadline: Millis) -> Duration {
    Duration::try_from_secs_f64(deadline.0 / 1e3).unwrap_or(LEASE).min(LEASE)
}

impl Drop for Announced {
    fn drop(&mut self) {
        for (lease, _, _) in self.leases.values() {
            self.agent.leases.release(*lease);
        }
    }
}

/// What the asker has been told.
struct Announced {
    agent: Arc<Agent>,
    tell: mpsc::Sender<BuildEvent>,
    /// Bytes that may be announced and not yet pulled.
    credit: u64,
    credits: mpsc::UnboundedReceiver<u64>,
    /// Sizes of layers announced and not yet given back.
    ahead: VecDeque<u64>,
    leases: HashMap<SegmentKey, (u64, Bytes, u32)>,
}

impl Announced {
    async fn run(&mut self, order: BuildOrder) {
        let mut cold = Vec::new();
        for segment in order.segments {
            let BuildSegment { key, scope, ids } = segment;
            match self.agent.held(key, Some(ids.clone().into())).await {
                Ok(hit) => self.whole(&hit.tuple).await,
                Err(_) => {
                    cold.push(engine::Segment { key, scope, ids, publish: true });
                }
            }
        }
        self.build(cold).await;
        // The leases end with this task: let what was announced be pulled first.
        while !self.ahead.is_empty() {
            match self.credits.recv().await {
                Some(back) => self.give_back(back),
                None => return,
            }
        }
    }

    /// A tuple that was here already.
    async fn whole(&mut self, tuple: &StoredTuple) {
        let mut parts = tuple.parts();
        while let Some(first) = parts.first() {
            let layer = first.spec().layer;
            let count = parts.iter().take_while(|part| part.spec().layer == layer).count();
            self.layer(*tuple.key(), &parts[..count]).await;
            parts = &parts[count..];
        }
        self.built(tuple).await;
    }

    async fn build(&mut self, cold: Vec<engine::Segment>) {
        let mut builds = self.agent.engine.build(cold);
        while let Some(event) = builds.next().await {
            match event {
                engine::BuildEvent::Layer { key, parts, layer: _ } => self.layer(key, &parts).await,
                engine::BuildEvent::Built { tuple } => self.built(&tuple).await,
                engine::BuildEvent::Failed { key, error } => {
                    tracing::warn!(%key, %error, "a build failed");
                    self.say(BuildEvent::Failed { key, reason: error.to_string() }).await;
                }
            }
        }
    }

    async fn layer(&mut self, key: SegmentKey, parts: &[Part]) {
        let leases = &self.agent.leases;
        let (lease, ticket, count) = self.leases.entry(key).or_insert_with(|| {
            let (lease, ticket) = leases.grant(key, Vec::new(), LEASE);
            (lease, ticket, 0)
        });
        leases.extend(*lease, parts);
        *count += parts.len() as u32;
        let ticket = ticket.clone();
        // A layer is pulled as one, so it is announced as one.
        self.wait_for_credit(parts.iter().map(|part| part.spec().len).sum()).await;
        for part in parts {
            let spec = part.spec().clone();
            let layer_parts = parts.len() as u32;
            self.say(BuildEvent::Part { key, spec, ticket: ticket.clone(), layer_parts }).await;
        }
    }

    async fn built(&mut self, tuple: &StoredTuple) {
        let parts = self.leases.get(tuple.key()).map_or(0, |(_, _, count)| *count);
        let manifest = tuple.encoded_manifest().clone();
        self.say(BuildEvent::Built { key: *tuple.key(), manifest, parts }).await;
    }

    /// Waits until a layer of `bytes` may be announced: within the credit, or alone.
    async fn wait_for_credit(&mut self, bytes: u64) {
        while !self.ahead.is_empty() && self.ahead.iter().sum::<u64>() + bytes > self.credit {
            match self.credits.recv().await {
                Some(back) => self.give_back(back),
                // The asker says no more; whether it has gone is seen elsewhere.
                None => return,
            }
        }
        while let Ok(back) = self.credits.try_recv() {
            self.give_back(back);
        }
        self.ahead.push_back(bytes);
    }

    fn give_back(&mut self, mut bytes: u64) {
        while let Some(first) = self.ahead.front_mut() {
            let taken = bytes.min(*first);
            *first -= taken;
            bytes -= taken;
            if *first > 0 {
                return;
            }
            self.ahead.pop_front();
        }
    }

    async fn say(&self, event: BuildEvent) {
        // Whoever asked may have gone; the select above ends this then.
        let _ = self.tell.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_asker_holds_an_order_for_ever() {
        assert_eq!(time_of(Millis(1500.0)), Duration::from_millis(1500));
        for forever in [1e9, f64::MAX] {
            assert_eq!(time_of(Millis(forever)), LEASE);
        }
    }
}
