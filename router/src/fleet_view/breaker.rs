//! Shuts a failing agent out for a while.

use std::time::{Duration, Instant};

/// Failures in a row that shut an agent out.
const FAILURES: u32 = 3;
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// One agent's record. After each further failure it is shut out for twice as long; one success clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    failures: u32,
    until: Option<Instant>,
}

impl Breaker {
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures += 1;
        if let Some(further) = self.failures.checked_sub(FAILURES) {
            let pause = FIRST.saturating_mul(2_u32.saturating_pow(further)).min(LONGEST);
            self.until = Some(now + pause);
        }
    }

    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }

    pub(super) fn lets_through(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_shut_out_for_a_second_and_each_further_one_for_longer() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        breaker.failed(now);
        breaker.failed(now);
        assert!(breaker.lets_through(now));
        breaker.failed(now);
        assert!(!breaker.lets_through(now));
        assert!(breaker.lets_through(now + FIRST));
        breaker.failed(now + FIRST);
        assert!(!breaker.lets_through(now + 2 * FIRST));
        for _ in 0..100 {
            breaker.failed(now);
        }
        assert!(breaker.lets_through(now + LONGEST));
        breaker.worked();
        assert!(breaker.lets_through(now));
    }
}
