//! The index as one flat map, told everything at once: what the sharded one must agree with when all
//! messages have arrived.

use std::collections::BTreeMap;

use hypic_domain::flow::Holder;
use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::key::SegmentKey;

use crate::event::{Change, Claim};

/// One flat map, no shards, no sequence.
#[derive(Clone, Debug, Default)]
pub struct Naive {
    claims: BTreeMap<(SegmentKey, AgentId), (Incarnation, Claim)>,
}

impl Naive {
    /// A change at a holder, as it happens there.
    pub fn apply(&mut self, agent: &AgentId, incarnation: Incarnation, change: Change) {
        let place = (change.key(), agent.clone());
        match change {
            Change::Has(claim) => self.claims.insert(place, (incarnation, claim)),
            Change::Gone(_) => self.claims.remove(&place),
        };
    }

    /// A holder is gone with all that it had.
    pub fn forget(&mut self, agent: &AgentId) {
        self.claims.retain(|(_, holder), _| holder != agent);
    }

    /// Holders of a key, nearest tier first.
    pub fn locate(&self, key: &SegmentKey) -> Vec<Holder> {
        let mut holders: Vec<Holder> = self
            .claims
            .iter()
            .filter(|((of, _), _)| of == key)
            .map(|((_, agent), (incarnation, claim))| Holder {
                agent: agent.clone(),
                incarnation: *incarnation,
                tier: claim.tier,
                bytes: claim.bytes,
            })
            .collect();
        holders.sort_by(|a, b| (a.tier, &a.agent).cmp(&(b.tier, &b.agent)));
        holders
    }
}
