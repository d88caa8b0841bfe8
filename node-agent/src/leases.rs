//! What peers may pull: whole tuples and those still being built, each under a lease that pins its parts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use hypic_domain::key::SegmentKey;
use hypic_store::codec::Part;
use hypic_wire::bulk::{PartSource, ReadPart, Tickets, unix_now};

/// Longest life of a lease, whatever the asker wishes.
const LONGEST: Duration = Duration::from_secs(120);

/// Leases by number.
pub struct Leases {
    tickets: Arc<Tickets>,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Lease>>,
}

struct Lease {
    key: SegmentKey,
    /// Ascending by offset; more may follow while the tuple is built.
    parts: Vec<Part>,
    until: Instant,
}

impl Leases {
    /// No lease yet.
    pub fn new(tickets: Arc<Tickets>) -> Self {
        Self { tickets, next: AtomicU64::new(1), open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Lease>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins `parts` for `ttl`; the lease and the right to read under it.
    pub fn grant(&self, key: SegmentKey, parts: Vec<Part>, ttl: Duration) -> (u64, Bytes) {
        let ttl = ttl.min(LONGEST);
        let lease = self.next.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut open = self.open();
        open.retain(|_, lease| lease.until > now);
        open.insert(lease, Lease { key, parts, until: now + ttl });
        (lease, self.tickets.mint(&key, lease, unix_now() + ttl))
    }

    /// Adds parts that are done to a lease of a tuple that is being built.
    pub fn extend(&self, lease: u64, parts: &[Part]) {
        if let Some(lease) = self.open().get_mut(&lease) {
            lease.parts.extend_from_slice(parts);
        }
    }

    /// Ends a lease; one that has ended already is none the worse.
    pub fn release(&self, lease: u64) {
        self.open().remove(&lease);
    }

    /// Leases that pin something; what ran out is let go.
    pub fn len(&self) -> usize {
        let now = Instant::now();
        let mut open = self.open();
        open.retain(|_, lease| lease.until > now);
        open.len()
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read_now(&self, key: &SegmentKey, lease: u64, offset: u64, len: u64) -> Result<Bytes, ReadPart> {
        let open = self.open();
        let lease = open.get(&lease).filter(|lease| lease.key == *key).ok_or(ReadPart::Gone)?;
        if lease.until <= Instant::now() {
            return Err(ReadPart::Gone);
        }
        // The last part that begins at or before the range.
        let behind = lease.parts.partition_point(|part| part.spec().offset <= offset);
        let part = behind.checked_sub(1).and_then(|at| lease.parts.get(at)).ok_or(ReadPart::Range)?;
        let from = offset - part.spec().offset;
        let to = from.checked_add(len).ok_or(ReadPart::Range)?;
        if len == 0 || to > part.bytes().len() as u64 {
            return Err(ReadPart::Range);
        }
        Ok(part.bytes().slice(from as usize..to as usize))
    }
}

impl PartSource for Leases {
    fn read(
        &self,
        key: SegmentKey,
        lease: u64,
        offset: u64,
        len: u64,
    ) -> BoxFuture<'static, Result<Bytes, ReadPart>> {
        let read = self.read_now(&key, lease, offset, len);
        Box::pin(std::future::ready(read))
    }
}

#[cfg(test)]
mod tests {
    use hypic_domain::tuple::{PartKind, PartSpec};

    use super::*;

    fn part(offset: u64, bytes: &'static [u8]) -> Part {
        let sum = xxhash_rust::xxh3::xxh3_64(bytes);
        let spec = PartSpec { layer: 0, kind: PartKind::State, offset, len: bytes.len() as u64, sum };
        Part::check(spec, Bytes::from_static(bytes)).unwrap()
    }

    #[test]
    fn a_lease_reads_inside_its_parts_and_nowhere_else() {
        let leases = Leases::new(Arc::new(Tickets::random().unwrap()));
        let key = SegmentKey([3; 32]);
        let (lease, _) = leases.grant(key, vec![part(0, b"abcd")], Duration::from_secs(9));
        assert_eq!(leases.read_now(&key, lease, 1, 2).unwrap(), "bc");
        assert_eq!(leases.read_now(&key, lease, 4, 2), Err(ReadPart::Range));
        leases.extend(lease, &[part(4, b"efg")]);
        assert_eq!(leases.read_now(&key, lease, 4, 3).unwrap(), "efg");
        assert_eq!(leases.read_now(&key, lease, 4, 4), Err(ReadPart::Range));
        assert_eq!(leases.read_now(&key, lease, u64::MAX, 2), Err(ReadPart::Range));
        assert_eq!(leases.read_now(&SegmentKey([4; 32]), lease, 0, 1), Err(ReadPart::Gone));
        leases.release(lease);
        assert_eq!(leases.read_now(&key, lease, 0, 1), Err(ReadPart::Gone));
        assert!(leases.is_empty());
    }

    #[test]
    fn a_lease_that_ran_out_pins_nothing_once_leases_are_counted() {
        let leases = Leases::new(Arc::new(Tickets::random().unwrap()));
        let bytes = Bytes::from(vec![7; 4]);
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        let spec = PartSpec { layer: 0, kind: PartKind::State, offset: 0, len: 4, sum };
        let part = Part::check(spec, bytes.clone()).unwrap();
        leases.grant(SegmentKey([3; 32]), vec![part], Duration::ZERO);
        assert!(!bytes.is_unique());
        assert_eq!(leases.len(), 0);
        assert!(bytes.is_unique());
    }
}
