//! What was seen of late, whether it is still held or not: a tuple that was evicted and is built again has
//! proven itself.

use std::collections::HashMap;

use hypic_domain::key::SegmentKey;

use crate::evict::Heat;

/// Keys remembered in one generation. Two generations are kept: at most 8 MiB.
const GENERATION: usize = 1 << 16;

/// The sights of recent keys, and the count of all sights, which is the store's clock.
#[derive(Debug)]
pub(crate) struct History {
    tick: u64,
    half_life: f64,
    young: HashMap<SegmentKey, Heat>,
    old: HashMap<SegmentKey, Heat>,
}

impl History {
    pub(crate) fn new(half_life: f64) -> Self {
        Self { tick: 0, half_life, young: HashMap::new(), old: HashMap::new() }
    }

    /// One more sight of `key`: its heat, and whether it was seen before.
    pub(crate) fn sight(&mut self, key: SegmentKey) -> (Heat, bool) {
        self.tick += 1;
        let before = self.young.get(&key).or_else(|| self.old.get(&key)).copied();
        let heat = before.unwrap_or(Heat::COLD).sighted(self.tick, self.half_life);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, heat);
        (heat, before.is_some())
    }
}
