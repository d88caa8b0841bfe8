//! What holders say to slot owners, and what owners answer.
//!
//! Per (holder, owner) there is one stream. It starts with a dump: every claim of the holder in the owner's
//! slots, in pages. Announcements follow, numbered without a hole from the dump's `at` on. One message is in
//! flight at a time and is repeated until it is answered, so messages may be lost, doubled or late.

use hypic_domain::id::{AgentId, Epoch, Incarnation, Sequence};
use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;

/// Most claims in one dump page and most changes in one announcement: about 200 KiB on the wire, far under
/// the 4 MiB at which gRPC refuses a message.
pub const PAGE: usize = 4096;

/// One tuple that a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of which segment.
    pub key: SegmentKey,
    /// The nearest tier it lies in.
    pub tier: Tier,
    /// Size there.
    pub bytes: Bytes,
}

/// A change in what a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has the tuple now, or has it in another tier.
    Has(Claim),
    /// It no longer has it in any tier.
    Gone(SegmentKey),
}

impl Change {
    /// The segment it is about.
    pub fn key(&self) -> SegmentKey {
        match self {
            Self::Has(claim) => claim.key,
            Self::Gone(key) => *key,
        }
    }
}

/// Who speaks, in which life, by which topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The holder.
    pub agent: AgentId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The topology by which it chose the owner.
    pub epoch: Epoch,
}

/// Changes since the announcement before. An empty one asks whether the owner is still up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Who speaks.
    pub sender: Sender,
    /// Place in the stream.
    pub sequence: Sequence,
    /// What changed; at most one entry per key.
    pub changes: Vec<Change>,
}

/// One page of all that a holder has in an owner's slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpPage {
    /// Who speaks.
    pub sender: Sender,
    /// Number of the dump; it grows within one incarnation, over all owners.
    pub dump: u64,
    /// Announcements up to this one are contained in the dump.
    pub at: Sequence,
    /// Number of the page, from 0.
    pub page: u32,
    /// Whether the dump is whole with this page.
    pub last: bool,
    /// Claims of this page.
    pub claims: Vec<Claim>,
}

/// Either kind of message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Changes.
    Announce(Announcement),
    /// A page of a dump.
    Dump(DumpPage),
}

/// An owner's answer to one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken.
    Applied,
    /// Taken before; nothing changed.
    Old,
    /// Something is missing: the holder must dump. What the owner knew stays until the dump is whole.
    NeedDump,
    /// Holder and owner go by different topologies; try again when one of them has moved.
    WrongOwner {
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// The owner's topology does not know the holder (yet).
    Stranger,
    /// A later life of the same agent has spoken: this one must stop.
    Fenced {
        /// The later life.
        incarnation: Incarnation,
    },
}

/// Digest of a set of keys: the xor of 64 bits of each. Keys are digests themselves, so two different sets
/// agree by chance once in 2^64.
pub fn set_digest<'a>(keys: impl Iterator<Item = &'a SegmentKey>) -> u64 {
    keys.fold(0, |sum, key| {
        let mut word = [0; 8];
        word.copy_from_slice(&key.0[8..16]);
        sum ^ u64::from_le_bytes(word)
    })
}
