//! What one slot owner knows: which agents have which tuples, and who builds what.

mod grants;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypic_domain::flow::{Holder, Located};
use hypic_domain::id::{AgentId, Epoch, Incarnation, Sequence};
use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::topology::Topology;
use hypic_domain::unit::Bytes;

use crate::Error;
use crate::event::{Announcement, Change, Claim, DumpPage, Message, Sender, Verdict, set_digest};
use crate::ring::Ring;
pub use grants::Granted;
use grants::Grants;

/// Bounds of a shard's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Claims, at about 100 bytes each. Those over the limit are not taken, and counted: they cost
    /// recomputes.
    pub claims: usize,
    /// Builds under way. Over the limit the one that ends first is forgotten: it may be built twice.
    pub grants: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { claims: 4 << 20, grants: 1 << 16 }
    }
}

/// Facts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys with at least one holder.
    pub keys: usize,
    /// Claims over all keys.
    pub claims: usize,
    /// Holders whose view is whole.
    pub whole: usize,
    /// Holders that still have to dump.
    pub partial: usize,
    /// Builds under way.
    pub grants: usize,
    /// Claims not taken for want of room, since the start.
    pub refused: u64,
}

/// The part of the index that one agent owns.
#[derive(Debug)]
pub struct Shard {
    me: AgentId,
    ring: Arc<Ring>,
    members: Vec<AgentId>,
    replicas: usize,
    limits: Limits,
    entries: HashMap<SegmentKey, Vec<Held>>,
    claims: usize,
    holders: BTreeMap<AgentId, HolderState>,
    grants: Grants,
    refused: u64,
}

/// One claim in one entry.
#[derive(Clone, Debug)]
struct Held {
    by: Arc<Life>,
    tier: Tier,
    bytes: Bytes,
}

/// One life of one agent; shared by its claims.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    agent: AgentId,
    incarnation: Incarnation,
}

/// What is known of one holder's stream.
#[derive(Debug)]
struct HolderState {
    life: Arc<Life>,
    /// The last announcement contained in its claims; `None` until a dump is whole.
    sequence: Option<Sequence>,
    /// Number of the last whole dump.
    dumped: u64,
    staging: Option<Staging>,
}

/// A dump on its way. Claims from before stay visible until it is whole.
#[derive(Debug)]
struct Staging {
    dump: u64,
    pages: u32,
    claims: Vec<Claim>,
}

impl Shard {
    /// An empty shard of agent `me`; every holder will be asked to dump.
    pub fn new(me: AgentId, topology: &Topology, replicas: usize, limits: Limits) -> Self {
        Self {
            me,
            ring: Arc::new(Ring::new(topology, replicas)),
            members: members(topology),
            replicas,
            limits,
            entries: HashMap::new(),
            claims: 0,
            holders: BTreeMap::new(),
            grants: Grants::new(limits.grants),
            refused: 0,
        }
    }

    /// The ring in use; the agent's own announcer shares it.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Epoch of the ring in use.
    pub fn epoch(&self) -> Epoch {
        self.ring.epoch()
    }

    /// Goes by a new topology: forgets slots that it no longer owns and agents that are no longer in it.
    /// Where it owns a new slot, no holder's claims are whole any more, and each will be asked to dump.
    ///
    /// # Errors
    /// [`Error::AdoptTopology`] if the topology is older than the one in use.
    pub fn adopt(&mut self, topology: &Topology) -> Result<(), Error> {
        if topology.epoch < self.ring.epoch() {
            return Err(Error::AdoptTopology { offered: topology.epoch, epoch: self.ring.epoch() });
        }
        let ring = Arc::new(Ring::new(topology, self.replicas));
        self.members = members(topology);
        if ring.gained(&self.ring, &self.me) {
            for holder in self.holders.values_mut() {
                holder.sequence = None;
                holder.staging = None;
            }
        }
        self.holders.retain(|agent, _| self.members.binary_search(agent).is_ok());
        let (me, members) = (&self.me, &self.members);
        self.entries.retain(|key, held| {
            held.retain(|claim| members.binary_search(&claim.by.agent).is_ok());
            ring.owns(me, key) && !held.is_empty()
        });
        self.claims = self.entries.values().map(Vec::len).sum();
        self.grants.retain(|key, agent| ring.owns(me, key) && members.binary_search(agent).is_ok());
        self.ring = ring;
        Ok(())
    }

    /// Takes a message of a holder.
    pub fn take(&mut self, message: &Message) -> Verdict {
        match message {
            Message::Announce(announcement) => self.announce(announcement),
            Message::Dump(page) => self.dump(page),
        }
    }

    fn announce(&mut self, announcement: &Announcement) -> Verdict {
        let (life, known) = match self.admit(&announcement.sender) {
            Ok(holder) => (Arc::clone(&holder.life), holder.sequence),
            Err(refusal) => return refusal,
        };
        let Some(known) = known else { return Verdict::NeedDump };
        if announcement.sequence <= known {
            return Verdict::Old;
        }
        if announcement.sequence.0 != known.0 + 1 {
            return Verdict::NeedDump;
        }
        if let Some(holder) = self.holders.get_mut(&life.agent) {
            holder.sequence = Some(announcement.sequence);
        }
        for change in &announcement.changes {
            match change {
                Change::Has(claim) => self.insert(&life, claim),
                Change::Gone(key) => self.remove(&life, key),
            }
        }
        Verdict::Applied
    }

    fn dump(&mut self, page: &DumpPage) -> Verdict {
        let limit = self.limits.claims;
        let holder = match self.admit(&page.sender) {
            Ok(holder) => holder,
            Err(refusal) => return refusal,
        };
        let running = holder.staging.as_ref().map_or(0, |staging| staging.dump);
        if page.dump <= holder.dumped || page.dump < running {
            return Verdict::Old;
        }
        if page.dump > running && page.page == 0 {
            holder.staging = Some(Staging { dump: page.dump, pages: 0, claims: Vec::new() });
        }
        let Some(staging) = holder.staging.as_mut().filter(|staging| staging.dump == page.dump) else {
            return Verdict::NeedDump;
        };
        if page.page < staging.pages {
            return Verdict::Old;
        }
        if page.page > staging.pages {
            return Verdict::NeedDump;
        }
        staging.pages += 1;
        let room = limit.saturating_sub(staging.claims.len());
        staging.claims.extend(page.claims.iter().take(room));
        let refused = page.claims.len().saturating_sub(room) as u64;
        if page.last {
            let claims = std::mem::take(&mut staging.claims);
            holder.staging = None;
            holder.dumped = page.dump;
            holder.sequence = Some(page.at);
            let life = Arc::clone(&holder.life);
            self.void(&life.agent);
            for claim in &claims {
                self.insert(&life, claim);
            }
        }
        self.refused += refused;
        Verdict::Applied
    }

    /// The state of the sender's stream, if it may speak. A later life voids the claims of the former one.
    fn admit(&mut self, sender: &Sender) -> Result<&mut HolderState, Verdict> {
        if sender.epoch != self.ring.epoch() {
            return Err(Verdict::WrongOwner { epoch: self.ring.epoch() });
        }
        if self.members.binary_search(&sender.agent).is_err() {
            return Err(Verdict::Stranger);
        }
        let known = self.holders.get(&sender.agent).map(|holder| holder.life.incarnation);
        if let Some(incarnation) = known.filter(|known| *known > sender.incarnation) {
            return Err(Verdict::Fenced { incarnation });
        }
        if known.is_some_and(|known| known < sender.incarnation) {
            self.forget(&sender.agent);
            self.holders.remove(&sender.agent);
        }
        Ok(self.holders.entry(sender.agent.clone()).or_insert_with(|| HolderState {
            life: Arc::new(Life { agent: sender.agent.clone(), incarnation: sender.incarnation }),
            sequence: None,
            dumped: 0,
            staging: None,
        }))
    }

    /// Drops all that a vanished agent claimed or builds. If it lives after all, it is asked to dump when it
    /// speaks next; its earlier lives stay fenced.
    pub fn forget(&mut self, agent: &AgentId) {
        self.void(agent);
        self.grants.retain(|_, builder| builder != agent);
        if let Some(holder) = self.holders.get_mut(agent) {
            holder.sequence = None;
            holder.staging = None;
        }
    }

    /// Holders of each key, nearest tier first, and who builds it at `now`.
    ///
    /// # Errors
    /// [`Error::WrongOwner`] if one of the keys belongs to others.
    pub fn locate(&self, keys: &[SegmentKey], now: Instant) -> Result<Vec<Located>, Error> {
        keys.iter()
            .map(|key| {
                self.check(key)?;
                let held = self.entries.get(key).map_or(&[][..], Vec::as_slice);
                let holders = held
                    .iter()
                    .map(|claim| Holder {
                        agent: claim.by.agent.clone(),
                        incarnation: claim.by.incarnation,
                        tier: claim.tier,
                        bytes: claim.bytes,
                    })
                    .collect();
                Ok(Located { holders, building: self.grants.builder(key, now).cloned() })
            })
            .collect()
    }

    /// Lets `agent` build `key` until `now + ttl`, unless another is at it: single-flight per key. Asking
    /// again prolongs the own grant.
    ///
    /// # Errors
    /// [`Error::WrongOwner`] if the key belongs to others.
    pub fn grant(
        &mut self,
        key: SegmentKey,
        agent: &AgentId,
        now: Instant,
        ttl: Duration,
    ) -> Result<Granted, Error> {
        self.check(&key)?;
        Ok(self.grants.grant(key, agent, now, ttl))
    }

    /// Ends a grant of `agent` whose build failed. A build that succeeds ends it by announcing the tuple.
    pub fn release(&mut self, key: &SegmentKey, agent: &AgentId) {
        self.grants.release(key, agent);
    }

    /// Per slot the digest of what `agent` claims, to compare with
    /// [`Announcer::digest`](crate::Announcer::digest). Slots without a claim are left out; their digest is 0.
    pub fn digests(&self, agent: &AgentId) -> BTreeMap<u16, u64> {
        let mut digests = BTreeMap::new();
        for (key, held) in &self.entries {
            if held.iter().any(|claim| claim.by.agent == *agent) {
                *digests.entry(key.slot()).or_default() ^= set_digest([key].into_iter());
            }
        }
        digests
    }

    /// Agents of the topology, this one left out, that have not told (anew) all that they hold.
    pub fn untold(&self) -> impl Iterator<Item = &AgentId> {
        let whole = |agent: &AgentId| self.holders.get(agent).is_some_and(|holder| holder.sequence.is_some());
        self.members.iter().filter(move |agent| **agent != self.me && !whole(agent))
    }

    /// Facts for metrics, at `now`.
    pub fn counts(&self, now: Instant) -> Counts {
        let whole = self.holders.values().filter(|holder| holder.sequence.is_some()).count();
        Counts {
            keys: self.entries.len(),
            claims: self.claims,
            whole,
            partial: self.holders.len() - whole,
            grants: self.grants.alive(now),
            refused: self.refused,
        }
    }

    fn check(&self, key: &SegmentKey) -> Result<(), Error> {
        if self.ring.owns(&self.me, key) {
            return Ok(());
        }
        Err(Error::WrongOwner { slot: key.slot(), epoch: self.ring.epoch() })
    }

    /// Enters a claim, nearest tier first, then by agent. Claims in slots of others are left out: the holder
    /// goes by the same epoch, but a message may have been cut before it did.
    fn insert(&mut self, life: &Arc<Life>, claim: &Claim) {
        if !self.ring.owns(&self.me, &claim.key) {
            return;
        }
        self.remove(life, &claim.key);
        if self.claims >= self.limits.claims {
            self.refused += 1;
            return;
        }
        self.grants.finish(&claim.key);
        let held = self.entries.entry(claim.key).or_default();
        let new = Held { by: Arc::clone(life), tier: claim.tier, bytes: claim.bytes };
        let place = held.partition_point(|other| (other.tier, &other.by.agent) < (new.tier, &new.by.agent));
        held.insert(place, new);
        self.claims += 1;
    }

    fn remove(&mut self, life: &Life, key: &SegmentKey) {
        let Some(held) = self.entries.get_mut(key) else { return };
        let before = held.len();
        held.retain(|claim| claim.by.agent != life.agent);
        self.claims -= before - held.len();
        if held.is_empty() {
            self.entries.remove(key);
        }
    }

    /// Drops all claims of an agent: one pass over the shard, needed once per life or dump.
    fn void(&mut self, agent: &AgentId) {
        self.entries.retain(|_, held| {
            held.retain(|claim| claim.by.agent != *agent);
            !held.is_empty()
        });
        self.claims = self.entries.values().map(Vec::len).sum();
    }
}

fn members(topology: &Topology) -> Vec<AgentId> {
    let mut members: Vec<AgentId> = topology.agents.iter().map(|entry| entry.id.clone()).collect();
    members.sort();
    members
}

#[cfg(test)]
mod tests;
