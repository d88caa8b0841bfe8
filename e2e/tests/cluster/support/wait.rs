//! Waiting, with a line for each thing that was waited for.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// Looks until there is something to see, and gives it. After `limit` seconds the test fails with what was seen last.
pub(crate) fn wait_for<T>(what: &str, limit: u64, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(seen) => {
                eprintln!("  {what}: after {:.1} s", start.elapsed().as_secs_f64());
                return seen;
            }
            Err(state) => assert!(
                start.elapsed() < Duration::from_secs(limit),
                "waited {limit} s in vain: {what}\nseen last: {state}"
            ),
        }
        sleep(PAUSE);
    }
}

/// Looks again and again for so many seconds; the first time that `look` finds a fault, the test fails.
pub(crate) fn for_a_while(what: &str, seconds: u64, mut look: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        if let Err(fault) = look() {
            panic!("{what}: not any more after {:.1} s\n{fault}", start.elapsed().as_secs_f64());
        }
        sleep(PAUSE);
    }
    eprintln!("  {what}: for {seconds} s");
}
