//! Who builds what now: at most one agent per key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;

/// The answer to an agent that wants to build a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Build it.
    Granted,
    /// Another agent is at it: fetch from there.
    Building {
        /// The builder.
        agent: AgentId,
    },
}

/// Grants by key.
#[derive(Debug)]
pub(super) struct Grants {
    limit: usize,
    by_key: HashMap<SegmentKey, (AgentId, Instant)>,
}

impl Grants {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), by_key: HashMap::new() }
    }

    /// Grants that have not run out.
    pub(super) fn alive(&self, now: Instant) -> usize {
        self.by_key.values().filter(|(_, until)| *until > now).count()
    }

    pub(super) fn builder(&self, key: &SegmentKey, now: Instant) -> Option<&AgentId> {
        self.by_key.get(key).filter(|(_, until)| *until > now).map(|(agent, _)| agent)
    }

    pub(super) fn grant(&mut self, key: SegmentKey, agent: &AgentId, now: Instant, ttl: Duration) -> Granted {
        if let Some(other) = self.builder(&key, now).filter(|builder| *builder != agent) {
            return Granted::Building { agent: other.clone() };
        }
        if self.by_key.len() >= self.limit && !self.by_key.contains_key(&key) {
            self.make_room(now);
        }
        self.by_key.insert(key, (agent.clone(), now + ttl));
        Granted::Granted
    }

    /// The tuple is there, whoever built it.
    pub(super) fn finish(&mut self, key: &SegmentKey) {
        self.by_key.remove(key);
    }

    pub(super) fn release(&mut self, key: &SegmentKey, agent: &AgentId) {
        if self.by_key.get(key).is_some_and(|(builder, _)| builder == agent) {
            self.by_key.remove(key);
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&SegmentKey, &AgentId) -> bool) {
        self.by_key.retain(|key, (agent, _)| keep(key, agent));
    }

    /// Drops what has ended; if nothing has, the grant that ends first.
    fn make_room(&mut self, now: Instant) {
        self.by_key.retain(|_, (_, until)| *until > now);
        if self.by_key.len() < self.limit {
            return;
        }
        let first = self.by_key.iter().min_by_key(|(key, (_, until))| (*until, **key)).map(|(key, _)| *key);
        if let Some(key) = first {
            self.by_key.remove(&key);
        }
    }
}
