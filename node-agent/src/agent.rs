//! All that the services of one agent share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hypic_domain::flow::ColdReason;
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::AgentRole;
use hypic_domain::unit::Millis;
use hypic_scatter::Scatter;
use hypic_store::{Hit, Store, StoredTuple};
use hypic_wire::bulk::BulkCounters;
use hypic_wire::status::Refusal;

use crate::engine::Engine;
use crate::index::Index;
use crate::leases::Leases;
use crate::membership::Membership;
use crate::metrics::Metrics;

/// One agent: what its gRPC services, probes and tasks work on.
pub struct Agent {
    /// What it is for.
    pub role: AgentRole,
    /// How its model is served.
    pub model: ModelFile,
    /// Of its tuples.
    pub identity: Identity,
    /// Digest of its weights.
    pub weights: [u8; 32],
    /// The name of the device that computes.
    pub device: &'static str,
    /// Computes.
    pub engine: Engine,
    /// Keeps tuples.
    pub store: Arc<Store>,
    /// Gathers tuples from others.
    pub scatter: Arc<Scatter>,
    /// Its slots of the index.
    pub index: Arc<Index>,
    /// The fleet.
    pub membership: Arc<Membership>,
    /// What peers may pull.
    pub leases: Arc<Leases>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What was pulled from peers and served to them.
    pub bulk: Bulk,
    /// It stops taking work.
    pub draining: AtomicBool,
}

/// Both sides of the bulk transport, counted.
pub struct Bulk {
    /// The receiving side.
    pub pulled: Arc<BulkCounters>,
    /// The sending side.
    pub served: Arc<BulkCounters>,
}

impl Agent {
    /// What keeps it from serving.
    ///
    /// # Errors
    /// What it waits for.
    pub fn ready(&self) -> Result<(), Refusal> {
        let waits = |why: &str| Err(Refusal::NotServing { why: why.to_owned() });
        if self.draining.load(Ordering::Relaxed) {
            return waits("draining");
        }
        if self.membership.named().is_none() {
            return waits("not in the topology any more");
        }
        Ok(())
    }

    /// A tuple made under another identity is none.
    ///
    /// # Errors
    /// [`Refusal::Identity`].
    pub fn check_identity(&self, identity: &Identity) -> Result<(), Refusal> {
        if *identity == self.identity { Ok(()) } else { Err(Refusal::Identity) }
    }

    /// The tuple of `key`, if it is here. Reads the drive on a thread of its own where it must.
    ///
    /// # Errors
    /// Why it is a miss.
    pub async fn held(&self, key: SegmentKey, ids: Option<Arc<[u32]>>) -> Result<Hit, ColdReason> {
        match self.store.locate(&key) {
            None => Err(ColdReason::Unknown),
            Some((hypic_domain::tier::Tier::Disk, _)) => {
                let store = Arc::clone(&self.store);
                let read = tokio::task::spawn_blocking(move || store.get(&key, ids.as_deref()));
                read.await.unwrap_or(Err(ColdReason::FetchFailed))
            }
            Some(_) => self.store.get(&key, ids.as_deref()),
        }
    }

    /// Keeps a tuple that came from another agent. One that finds no room is used and forgotten.
    pub fn keep(&self, tuple: &StoredTuple, scope: &Scope) {
        let saved = self.saved(tuple.head().ids.len());
        if let Err(error) = self.store.put(tuple, scope, saved) {
            tracing::debug!(key = %tuple.key(), %error, "a tuple is not kept");
        }
    }

    /// Predicted time to build a segment of so many tokens.
    fn saved(&self, tokens: usize) -> Millis {
        self.engine.calibration().prefill_of(tokens)
    }
}
