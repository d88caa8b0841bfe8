//! How long an object that failed waits, each for itself: doubled with every failure, from half a second.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
/// 2^7 times the first wait is over a minute.
const MOST: u32 = 7;

/// Failures in a row, by object.
#[derive(Debug, Default)]
pub struct Patience(Mutex<BTreeMap<String, u32>>);

impl Patience {
    /// The wait after one more failure.
    pub fn next(&self, object: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(object.to_owned()).or_default();
        let wait = FIRST * 2_u32.pow(*count);
        *count = (*count + 1).min(MOST);
        wait
    }

    /// A pass went well, or the object is gone.
    pub fn reset(&self, object: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_per_object_and_begin_anew() {
        let patience = Patience::default();
        let waits: Vec<u128> = (0..9).map(|_| patience.next("a").as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 64_000]);
        assert_eq!(patience.next("b").as_millis(), 500);
        patience.reset("a");
        assert_eq!(patience.next("a").as_millis(), 500);
    }
}
