//! This agent's share of the segment index: the slots it owns, and the announcements of what it has.

mod admit;
mod announce;
mod ask;
mod convert;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use ask::Owners;
use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_lookup::{Announcer, Change, Counts, Granted, Limits, Ring, Shard};
use hypic_wire::proto;
use hypic_wire::status::Refusal;
use tokio::sync::Notify;

use admit::Admission;

use crate::membership::Membership;

/// Longest grant of a build, whatever the asker wishes: a builder that is silent for so long is not at it any more.
const GRANT: Duration = Duration::from_secs(120);
/// Owners of a slot.
const REPLICAS: usize = 2;

/// Shard and announcer of one agent. Locks are held for look-ups only, never across an await.
pub struct Index {
    /// The fleet.
    pub membership: Arc<Membership>,
    shard: Mutex<Shard>,
    announcer: Mutex<Announcer>,
    news: Notify,
    admission: Admission,
    /// The process ends: nothing is announced any more.
    leaving: AtomicBool,
}

impl Index {
    /// An index that knows nothing yet.
    pub fn new(membership: Arc<Membership>) -> Self {
        let topology = membership.topology();
        let me = membership.me.clone();
        let ring = Arc::new(Ring::new(&topology, REPLICAS));
        let index = Self {
            shard: Mutex::new(Shard::new(me.clone(), &topology, REPLICAS, Limits::default())),
            announcer: Mutex::new(Announcer::new(me, membership.incarnation, ring)),
            news: Notify::new(),
            admission: Admission::default(),
            leaving: AtomicBool::new(false),
            membership,
        };
        index.stay_or_go();
        index
    }

    fn shard(&self) -> MutexGuard<'_, Shard> {
        self.shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announcer(&self) -> MutexGuard<'_, Announcer> {
        self.announcer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change in this agent's store.
    pub fn record(&self, change: Change) {
        self.announcer().record(change);
        self.news.notify_waiters();
    }

    /// Takes back all that was announced, for good.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.stay_or_go();
    }

    /// What an agent that is not in the topology holds is nobody's business: it will be gone soon.
    fn stay_or_go(&self) {
        let goes = self.leaving.load(Ordering::Relaxed) || self.membership.named().is_none();
        if goes {
            self.announcer().withdraw()
        } else {
            self.announcer().restore()
        }
        self.news.notify_waiters();
    }

    /// Whether every slot owner knows all that this agent has.
    pub fn is_told(&self) -> bool {
        self.announcer().waiting().next().is_none()
    }

    /// Goes by the newest topology.
    pub fn adopt(&self) {
        let mut shard = self.shard();
        if let Err(error) = shard.adopt(&self.membership.topology()) {
            tracing::warn!(%error, "keep the slots as they are");
            return;
        }
        let ring = Arc::clone(shard.ring());
        drop(shard);
        if let Err(error) = self.announcer().adopt(ring) {
            tracing::warn!(%error, "announce as before");
        }
        self.stay_or_go();
    }

    /// Facts for metrics.
    pub fn counts(&self) -> Counts {
        self.shard().counts(Instant::now())
    }

    /// Answers [`proto::LocateRequest`].
    ///
    /// # Errors
    /// [`Refusal::WrongOwner`], or a key that does not read.
    pub fn locate(&self, request: &proto::LocateRequest) -> Result<proto::LocateResponse, Refusal> {
        let keys = convert::keys(&request.keys)?;
        let shard = self.shard();
        let located = shard.locate(&keys, Instant::now()).map_err(convert::refusal)?;
        Ok(proto::LocateResponse {
            epoch: shard.epoch().0,
            located: located.into_iter().map(Into::into).collect(),
        })
    }

    /// Answers [`proto::AnnounceRequest`].
    ///
    /// # Errors
    /// A message that does not read.
    pub fn announce(&self, request: proto::AnnounceRequest) -> Result<proto::AnnounceResponse, Refusal> {
        let message = convert::from_announce(request)?;
        let mut shard = self.shard();
        let verdict = shard.take(&message);
        Ok(convert::to_verdict(verdict, shard.epoch()))
    }

    /// Answers [`proto::GrantRequest`].
    ///
    /// # Errors
    /// [`Refusal::WrongOwner`], or a key that does not read.
    pub fn grant(&self, request: proto::GrantRequest) -> Result<proto::GrantResponse, Refusal> {
        let ttl = Duration::from_millis(request.ttl_ms);
        let mut builders = Vec::with_capacity(request.wishes.len());
        for wish in request.wishes {
            let [key] = convert::keys(&[wish.key])?[..] else {
                return Err(Refusal::Malformed { why: "a wish has no key".to_owned() });
            };
            builders.push(self.grant_here(&key, &AgentId(wish.builder), ttl)?.0);
        }
        Ok(proto::GrantResponse { builders })
    }

    /// Who builds `key`: `builder` when granted.
    fn grant_here(&self, key: &SegmentKey, builder: &AgentId, ttl: Duration) -> Result<AgentId, Refusal> {
        let mut shard = self.shard();
        if ttl.is_zero() {
            shard.release(key, builder);
            return Ok(builder.clone());
        }
        match shard.grant(*key, builder, Instant::now(), ttl.min(GRANT)).map_err(convert::refusal)? {
            Granted::Granted => Ok(builder.clone()),
            Granted::Building { agent } => Ok(agent),
        }
    }
}

#[cfg(test)]
mod tests {
    use hypic_domain::id::{Epoch, Incarnation};
    use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
    use hypic_wire::channel::Channels;
    use hypic_wire::tls::Security;

    use super::*;

    #[test]
    fn no_grant_is_for_ever() {
        let me = AgentEntry {
            id: "a".into(),
            role: AgentRole::Combine,
            control: "a:1".to_owned(),
            bulk: "a:2".to_owned(),
        };
        let topology = Topology { epoch: Epoch(1), revision: 0, agents: vec![me] };
        let channels = Arc::new(Channels::new(Security::Plain));
        let index = Index::new(Arc::new(Membership::new("a".into(), Incarnation(1), channels, topology)));
        let wish = proto::GrantWish { key: vec![7; 32], builder: "gone".to_owned() };
        index.grant(proto::GrantRequest { epoch: 1, wishes: vec![wish], ttl_ms: u64::MAX }).unwrap();
        let builder = |at| {
            let located = index.shard().locate(&[SegmentKey([7; 32])], at).unwrap();
            located[0].building.clone()
        };
        assert_eq!(builder(Instant::now()), Some("gone".into()));
        assert_eq!(builder(Instant::now() + GRANT), None);
    }
}
