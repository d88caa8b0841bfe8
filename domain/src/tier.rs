//! Where a tuple can lie.

use serde::{Deserialize, Serialize};

/// The tiers, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The device's own memory: a GPU's, or an arena in main memory on a CPU machine.
    Device,
    /// Main memory, page-locked on GPU machines.
    Host,
    /// A local drive.
    Disk,
    /// An object store.
    Object,
}

impl Tier {
    /// The name used in metrics, CRDs and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Object => "object",
        }
    }
}
