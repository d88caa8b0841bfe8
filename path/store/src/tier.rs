//! What every tier does. The suite in `conformance.rs` runs over each of them.

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;

use crate::error::StoreError;
use crate::evict::Standing;
use crate::tuple::StoredTuple;

/// A place where tuples lie under a hard byte cap. Safe to use from any thread.
pub trait TierStore: Send + Sync {
    /// Which tier it is.
    fn tier(&self) -> Tier;

    /// Stores a tuple; one that is there already keeps its bytes and takes the standing. What had to go is
    /// pushed to `evicted`, also when the tuple could not be stored in the end.
    ///
    /// # Errors
    /// [`StoreError::MakeRoom`] with nothing changed, or what the medium said.
    fn put(
        &self,
        tuple: &StoredTuple,
        standing: &Standing,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), StoreError>;

    /// The tuple, whole and checked. It does not count as a sight.
    ///
    /// # Errors
    /// The entry is damaged and was dropped, or cannot be read just now and was kept.
    fn get(&self, key: &SegmentKey) -> Result<Option<StoredTuple>, StoreError>;

    /// What the policy knows of an entry; `None` where there is none.
    fn standing(&self, key: &SegmentKey) -> Option<Standing>;

    /// Bytes that an entry takes; `None` where there is none.
    fn bytes_of(&self, key: &SegmentKey) -> Option<Bytes>;

    /// Gives an entry, if it is there, a new standing.
    fn rank(&self, key: &SegmentKey, standing: &Standing);

    /// Takes an entry out, whether it is in use or not: its users keep their clones.
    fn remove(&self, key: &SegmentKey) -> Option<Evicted>;

    /// How full it is.
    fn usage(&self) -> Usage;

    /// Whether the tier has an entry of that key.
    fn contains(&self, key: &SegmentKey) -> bool {
        self.standing(key).is_some()
    }
}

/// What left a tier.
#[derive(Clone, Debug)]
pub struct Evicted {
    /// Its key.
    pub key: SegmentKey,
    /// What was known of it.
    pub standing: Standing,
    /// The tuple, where the tier had it in memory.
    pub tuple: Option<StoredTuple>,
}

/// How full a tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Which tier.
    pub tier: Tier,
    /// Tuples.
    pub entries: usize,
    /// Bytes used: never over the cap.
    pub bytes: Bytes,
    /// Hard bound.
    pub cap: Bytes,
}
