//! The right to read one tuple for a while: `lease ‖ expiry ‖ MAC`, made and checked by the same process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hypic_domain::key::SegmentKey;

use super::PartError;
use crate::Error;
use crate::tls::random_key;

const TICKET_BYTES: usize = 8 + 8 + 32;
/// Separates this use of BLAKE3 from all others.
const DOMAIN: &[u8] = b"hypic bulk ticket v1\0";

/// Mints and checks tickets. The key never leaves the process: a restart voids all tickets, as it voids the
/// leases behind them.
pub struct Tickets {
    key: [u8; 32],
}

impl Tickets {
    /// With a fresh random key.
    ///
    /// # Errors
    /// When the random source gives nothing.
    pub fn random() -> Result<Self, Error> {
        Ok(Self { key: random_key()? })
    }

    /// A ticket for `key` under `lease`, good until `expiry` (since the Unix epoch).
    pub fn mint(&self, key: &SegmentKey, lease: u64, expiry: Duration) -> Bytes {
        let (lease, expiry) = (lease.to_le_bytes(), millis(expiry).to_le_bytes());
        let mac = self.mac(key, lease, expiry);
        [lease.as_slice(), &expiry, mac.as_bytes()].concat().into()
    }

    /// The lease that the ticket stands for.
    ///
    /// # Errors
    /// [`PartError::Refused`] when it was not minted here for that key, [`PartError::Gone`] when it expired.
    pub fn check(&self, key: &SegmentKey, ticket: &[u8], now: Duration) -> Result<u64, PartError> {
        let refuse = || PartError::Refused { why: "ticket is not valid here".to_owned() };
        let ticket: [u8; TICKET_BYTES] = ticket.try_into().map_err(|_| refuse())?;
        let (lease, rest) = ticket.split_first_chunk::<8>().ok_or_else(refuse)?;
        let (expiry, mac) = rest.split_first_chunk::<8>().ok_or_else(refuse)?;
        // Comparing `blake3::Hash`es takes the same time wherever they differ.
        if self.mac(key, *lease, *expiry) != blake3::Hash::from_slice(mac).map_err(|_| refuse())? {
            return Err(refuse());
        }
        if millis(now) >= u64::from_le_bytes(*expiry) {
            return Err(PartError::Gone);
        }
        Ok(u64::from_le_bytes(*lease))
    }

    fn mac(&self, key: &SegmentKey, lease: [u8; 8], expiry: [u8; 8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(DOMAIN).update(&key.0).update(&lease).update(&expiry);
        hasher.finalize()
    }
}

/// Time since the Unix epoch, for expiries.
pub fn unix_now() -> Duration {
    // A clock before 1970 makes every ticket live: no worse than a clock that is merely slow.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_its_key_its_process_and_its_time() {
        let (here, there) = (Tickets::random().unwrap(), Tickets::random().unwrap());
        let (key, other) = (SegmentKey([1; 32]), SegmentKey([2; 32]));
        let (expiry, before) = (Duration::from_secs(100), Duration::from_secs(99));
        let ticket = here.mint(&key, 7, expiry);
        assert_eq!(here.check(&key, &ticket, before), Ok(7));
        assert_eq!(here.check(&key, &ticket, expiry), Err(PartError::Gone));
        assert!(matches!(here.check(&other, &ticket, before), Err(PartError::Refused { .. })));
        assert!(matches!(there.check(&key, &ticket, before), Err(PartError::Refused { .. })));
        assert!(here.check(&key, &ticket[1..], before).is_err());
        for byte in 0..ticket.len() {
            let mut forged = ticket.to_vec();
            forged[byte] ^= 1;
            assert!(matches!(here.check(&key, &forged, before), Err(PartError::Refused { .. })));
        }
    }
}
