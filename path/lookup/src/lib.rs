//! Station 2: segment key to holders.
//!
//! The index is sharded: a key names one of 4096 slots, a slot has owners among the combine agents
//! ([`ring`]). A slot owner keeps what holders tell it ([`shard`]); a holder keeps what it must tell whom
//! ([`announcer`]). [`naive`] is the same index as one flat map: the oracle of the tests.
//!
//! Holders are the truth. An answer may be stale, and then it costs a recompute; it never names a wrong
//! tuple, since the holder compares token ids.
//!
//! This crate does no I/O, reads no clock and knows no async runtime: the binaries carry the messages of
//! [`event`] and pass the time in. Start with [`event`], then [`shard`].

pub mod announcer;
pub mod event;
pub mod naive;
pub mod ring;
pub mod shard;

pub use announcer::Announcer;
pub use event::{Announcement, Change, Claim, DumpPage, Message, Sender, Verdict};
pub use ring::{Ring, SLOTS};
pub use shard::{Counts, Granted, Limits, Shard};

use hypic_domain::id::Epoch;

/// Why a slot owner did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The key's slot belongs to others: the asker's topology is older or newer than `epoch`.
    #[error("slot {slot} is not owned here in epoch {epoch}")]
    WrongOwner {
        /// The slot asked for.
        slot: u16,
        /// Epoch of the topology by which this agent decided.
        epoch: Epoch,
    },
    /// A topology older than the one in use.
    #[error("topology of epoch {offered} is older than epoch {epoch} in use")]
    AdoptTopology {
        /// Epoch of the offered topology.
        offered: Epoch,
        /// Epoch in use.
        epoch: Epoch,
    },
}
