//! Which tuple goes first: pure, no clock but a count of sights, no I/O.
//!
//! The score of a tuple is p(reuse) · saved milliseconds / bytes. p(reuse) is taken as proportional to how often
//! the tuple was seen, each sight halving in weight after `half_life` further sights of anything. Written as
//! `log2 Σ 2^(t_i / half_life)` that sum never has to be aged: it grows on a sight and stays otherwise, so an
//! ordered set holds the ranking and nothing is ever sorted anew.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::unit::Millis;

/// Who pays for an entry: a digest of the scope, so that no store keeps the scope, which is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The owner of a scope's tuples.
    pub fn of(scope: &Scope) -> Self {
        let digest = blake3::derive_key("hypic 2026 owner v1", &scope.0);
        let [a, b, c, d, e, f, g, h, ..] = digest;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Logarithm of the aged count of sights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heat(f64);

impl Heat {
    /// Never seen in this life of the process.
    pub const COLD: Self = Self(f64::NEG_INFINITY);

    /// After one more sight, the `tick`-th of all.
    #[must_use]
    pub fn sighted(self, tick: u64, half_life: f64) -> Self {
        let now = tick as f64 / half_life;
        let (low, high) = if self.0 < now { (self.0, now) } else { (now, self.0) };
        Self(high + (low - high).exp2().ln_1p() / std::f64::consts::LN_2)
    }
}

/// How safe an entry is from those of the other classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Seen once: goes first.
    Probation,
    /// Seen again.
    Proven,
    /// Marked by an operator: goes last.
    Kept,
}

/// What the policy knows of one entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Who pays for it.
    pub owner: Owner,
    /// Its class.
    pub class: Class,
    /// What a hit saves: the time to build it.
    pub saved: Millis,
    /// How often it was seen of late.
    pub heat: Heat,
}

/// Hard bounds of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all entries.
    pub cap: u64,
    /// Bytes of one owner's entries.
    pub quota: u64,
}

impl Limits {
    /// A cap of which one owner may use `share`, 0 to 1.
    pub fn shared(cap: u64, share: f64) -> Self {
        Self { cap, quota: (cap as f64 * share) as u64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank {
    class: Class,
    score: f64,
    key: SegmentKey,
}

impl Eq for Rank {}
impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        self.class.cmp(&other.class).then(self.score.total_cmp(&other.score)).then(self.key.cmp(&other.key))
    }
}
impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn rank(key: SegmentKey, standing: &Standing, bytes: u64) -> Rank {
    let worth = (standing.saved.0.max(f64::MIN_POSITIVE) / bytes.max(1) as f64).log2();
    Rank { class: standing.class, score: standing.heat.0 + worth, key }
}

/// The entries of one tier in the order in which they would go, and their sizes.
#[derive(Debug, Default)]
pub struct Ranking {
    order: BTreeMap<Rank, (u64, Owner)>,
    entries: HashMap<SegmentKey, (Standing, u64)>,
    used: u64,
    used_by: HashMap<Owner, u64>,
}

impl Ranking {
    /// Bytes of all entries.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The standing of an entry.
    pub fn standing(&self, key: &SegmentKey) -> Option<Standing> {
        self.entries.get(key).map(|(standing, _)| *standing)
    }

    /// Bytes of an entry.
    pub fn bytes(&self, key: &SegmentKey) -> Option<u64> {
        self.entries.get(key).map(|(_, bytes)| *bytes)
    }

    /// The entry that would go first.
    pub fn first(&self) -> Option<SegmentKey> {
        self.order.first_key_value().map(|(rank, _)| rank.key)
    }

    /// Adds an entry, in place of the one of that key.
    pub fn insert(&mut self, key: SegmentKey, standing: Standing, bytes: u64) {
        self.remove(&key);
        self.order.insert(rank(key, &standing, bytes), (bytes, standing.owner));
        self.entries.insert(key, (standing, bytes));
        self.used += bytes;
        *self.used_by.entry(standing.owner).or_default() += bytes;
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &SegmentKey) -> Option<Standing> {
        let (standing, bytes) = self.entries.remove(key)?;
        self.order.remove(&rank(*key, &standing, bytes));
        self.used -= bytes;
        if let Some(used) = self.used_by.get_mut(&standing.owner) {
            *used -= bytes;
            if *used == 0 {
                self.used_by.remove(&standing.owner);
            }
        }
        Some(standing)
    }

    /// What must go, first first, for `bytes` more of `owner` to be within `limits`; `None` if that cannot be
    /// reached by entries that are not `in_use`.
    pub fn victims(
        &self,
        bytes: u64,
        owner: Owner,
        limits: Limits,
        in_use: impl Fn(&SegmentKey) -> bool,
    ) -> Option<Vec<SegmentKey>> {
        if bytes > limits.cap.min(limits.quota) {
            return None;
        }
        let mut victims = Vec::new();
        let own = self.used_by.get(&owner).copied().unwrap_or(0);
        let mut over_quota = (own + bytes).saturating_sub(limits.quota);
        let mut over_cap = (self.used + bytes).saturating_sub(limits.cap);
        for of_owner in [true, false] {
            for (rank, (size, theirs)) in &self.order {
                let wanted = if of_owner { over_quota } else { over_cap };
                if wanted == 0 {
                    break;
                }
                let counts = if of_owner { *theirs == owner } else { !victims.contains(&rank.key) };
                if counts && !in_use(&rank.key) {
                    victims.push(rank.key);
                    over_quota = over_quota.saturating_sub(if *theirs == owner { *size } else { 0 });
                    over_cap = over_cap.saturating_sub(*size);
                }
            }
        }
        (over_quota == 0 && over_cap == 0).then_some(victims)
    }
}

#[cfg(test)]
mod tests;
