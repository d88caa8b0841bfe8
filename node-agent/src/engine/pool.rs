//! Numbered things with owners: state slots and KV pages.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A fixed set of numbers that are lent out.
pub(super) struct Pool {
    free: Free,
    size: usize,
}

impl Pool {
    /// All of `numbers`, free.
    pub(super) fn new(numbers: Range<usize>) -> Self {
        Self { size: numbers.len(), free: Free(Arc::new(Mutex::new(numbers.rev().collect()))) }
    }

    /// Lends one out, if one is free.
    pub(super) fn take(&self) -> Option<Lease> {
        let number = self.free.numbers().pop()?;
        Some(Lease(Arc::new(Held { number, free: self.free.clone() })))
    }

    /// How many are free.
    pub(super) fn free(&self) -> usize {
        self.free.numbers().len()
    }

    /// How many there are.
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

/// The free ones.
#[derive(Clone)]
struct Free(Arc<Mutex<Vec<usize>>>);

impl Free {
    // A panic under the lock cannot leave it half changed: a push and a pop do not panic.
    fn numbers(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number on loan. Clones share it; it is free again when the last is dropped, whatever path led there.
#[derive(Clone)]
pub(super) struct Lease(Arc<Held>);

struct Held {
    number: usize,
    free: Free,
}

impl Lease {
    /// The number.
    pub(super) fn number(&self) -> usize {
        self.0.number
    }

    /// Whether somebody else holds it too: then it must not be written.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free.numbers().push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_when_its_last_owner_is_gone() {
        let pool = Pool::new(3..5);
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((one.number(), two.number(), pool.free()), (3, 4, 0));
        assert!(pool.take().is_none());
        let shared = one.clone();
        assert!(one.is_shared() && !two.is_shared());
        drop(one);
        assert_eq!(pool.free(), 0);
        drop(shared);
        assert_eq!((pool.free(), pool.size()), (1, 2));
    }
}
