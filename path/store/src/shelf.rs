//! Entries in memory under a hard byte cap: what the memory tiers and the snapshot cache have in common.

use std::collections::HashMap;

use hypic_domain::key::SegmentKey;

use crate::evict::{Limits, Ranking, Standing};

/// A bounded map. It evicts by rank, and never what is in use.
#[derive(Debug)]
pub(crate) struct Shelf<V> {
    values: HashMap<SegmentKey, V>,
    ranking: Ranking,
    limits: Limits,
}

impl<V> Shelf<V> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { values: HashMap::new(), ranking: Ranking::default(), limits }
    }

    pub(crate) fn ranking(&self) -> &Ranking {
        &self.ranking
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn get(&self, key: &SegmentKey) -> Option<&V> {
        self.values.get(key)
    }

    /// Adds an entry and returns what had to go for it; `None`, and nothing changed, if there is no room.
    pub(crate) fn put(
        &mut self,
        key: SegmentKey,
        value: V,
        bytes: u64,
        standing: Standing,
        in_use: impl Fn(&V) -> bool,
    ) -> Option<Vec<(SegmentKey, V, Standing)>> {
        let used = |key: &SegmentKey| self.values.get(key).is_some_and(&in_use);
        let victims = self.ranking.victims(bytes, standing.owner, self.limits, used)?;
        let evicted = victims.into_iter().filter_map(|key| {
            let (value, standing) = self.remove(&key)?;
            Some((key, value, standing))
        });
        let evicted = evicted.collect();
        self.ranking.insert(key, standing, bytes);
        self.values.insert(key, value);
        Some(evicted)
    }

    pub(crate) fn remove(&mut self, key: &SegmentKey) -> Option<(V, Standing)> {
        let value = self.values.remove(key)?;
        Some((value, self.ranking.remove(key)?))
    }

    pub(crate) fn rank(&mut self, key: &SegmentKey, standing: Standing) {
        if let Some(bytes) = self.ranking.bytes(key) {
            self.ranking.insert(*key, standing, bytes);
        }
    }
}
