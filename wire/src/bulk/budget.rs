//! One cap on the bytes in flight.

use std::sync::Arc;

use hypic_domain::unit::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: a semaphore counts in 32 bits per lease.
const GRAIN: u64 = 1024;

/// How many bytes may be in flight at once.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<Semaphore>,
    grains: u32,
}

/// A share of a [`Budget`], given back when dropped. A transport drops it only when it is quiet.
#[derive(Debug)]
pub struct Lease {
    share: OwnedSemaphorePermit,
}

impl Budget {
    /// A budget of so many bytes, at least one grain of 1 KiB.
    pub fn new(bytes: Bytes) -> Self {
        let grains = grains(bytes.0).max(1);
        Self { free: Arc::new(Semaphore::new(grains as usize)), grains }
    }

    /// Waits for a share; first come, first served. A share over the whole budget waits for all of it, so
    /// that one large part still passes, alone.
    pub async fn lease(&self, bytes: Bytes) -> Lease {
        let wanted = grains(bytes.0).min(self.grains);
        let share = Arc::clone(&self.free).acquire_many_owned(wanted).await;
        Lease { share: share.expect("the semaphore is private and nothing closes it") }
    }

    /// Bytes in flight, rounded up to 1 KiB per lease.
    pub fn used(&self) -> Bytes {
        Bytes((u64::from(self.grains) - self.free.available_permits() as u64) * GRAIN)
    }
}

impl Lease {
    /// Size of the share.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.share.num_permits() as u64 * GRAIN)
    }
}

fn grains(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(GRAIN)).unwrap_or(u32::MAX)
}
