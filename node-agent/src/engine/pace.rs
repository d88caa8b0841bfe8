//! How fast the engine is: measured before it serves, and followed by what it computes since.

use std::time::Instant;

use hypic_domain::unit::Millis;

use super::load::{Calibration, Counters};

/// Rows of prompts and builds under which a span says little: the shortest prompt that is timed.
const LEAST_ROWS: u64 = 64;
/// Share of one span in the average.
const SHARE: f64 = 1.0 / 8.0;

/// The measured times, and how much longer work takes now than it took then.
///
/// A span is from the first rows that are given to an idle device until a result of the last of them has come to the host.
/// Its time over the predicted one moves an average of logarithms by an eighth, so that one odd span moves it little, and
/// after 20 spans a measurement that was wrong by ten is right to a fifth. Prompts, builds and answers all move together:
/// what changes with a machine's other work is its speed, not the shape of the curve. Spans of answers and compositions
/// alone say nothing of prompts and are left out; an engine without work keeps what it knows.
#[derive(Default)]
pub(super) struct Pace {
    measured: Calibration,
    /// Natural logarithm of the time that work takes over the time that it took when it was measured.
    slower: f64,
    /// When it began, and the rows until then.
    span: Option<(Instant, Counters)>,
}

impl Pace {
    /// Begins anew with these times. Where fewer rows took longer than more, the machine was busy, and they count as long as
    /// those: a curve that falls says, prolonged, that long prompts take no time at all, which no span could correct.
    pub(super) fn set(&mut self, mut measured: Calibration) {
        let mut most = Millis(f64::INFINITY);
        for (_, time) in measured.prefill.iter_mut().rev() {
            most = Millis(time.0.min(most.0));
            *time = most;
        }
        *self = Self { measured, slower: 0.0, span: None };
    }

    /// The times of now.
    pub(super) fn now(&self) -> Calibration {
        let factor = self.slower.exp();
        let mut times = self.measured.clone();
        for (_, time) in times.prefill.iter_mut().chain(&mut times.decode) {
            *time = Millis(time.0 * factor);
        }
        times.build_tokens_per_second /= factor;
        times
    }

    /// Rows are given to the device, none of which `counters` has yet.
    pub(super) fn give(&mut self, now: Instant, counters: &Counters) {
        self.span.get_or_insert((now, *counters));
    }

    /// The results of all rows in `counters` are there.
    pub(super) fn settle(&mut self, now: Instant, counters: &Counters) {
        let Some((begun, before)) = self.span.take() else { return };
        let rows = |of: fn(&Counters) -> u64| of(counters) - of(&before);
        let (live, built) = (rows(|counters| counters.rows_live), rows(|counters| counters.rows_built));
        if live + built < LEAST_ROWS {
            return;
        }
        let beside = rows(|counters| counters.rows_decoded + counters.rows_composed);
        let predicted = self.measured.span_of(live + beside, built).0;
        let moved = (now.duration_since(begun).as_secs_f64() * 1e3 / predicted).ln();
        // What took no time, or was predicted to take none, says nothing.
        if moved.is_finite() {
            self.slower += (moved - self.slower) * SHARE;
        }
    }

    /// There is nothing to compute: waiting is no work.
    pub(super) fn rest(&mut self) {
        self.span = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hypic_domain::unit::Tokens;

    use super::*;

    /// 10 ms for 100 rows of a prompt, 20 ms for 100 of a build.
    fn measured() -> Calibration {
        Calibration {
            prefill: vec![(Tokens(100), Millis(10.0)), (Tokens(200), Millis(20.0))],
            decode: vec![(Tokens(1), Millis(1.0))],
            build_tokens_per_second: 5000.0,
            live_share: 1.0,
        }
    }

    struct Machine {
        pace: Pace,
        now: Instant,
        done: Counters,
    }

    impl Machine {
        fn new() -> Self {
            let mut pace = Pace::default();
            pace.set(measured());
            Self { pace, now: Instant::now(), done: Counters::default() }
        }

        fn span(&mut self, ms: u64, add: impl FnOnce(&mut Counters)) {
            self.pace.give(self.now, &self.done);
            add(&mut self.done);
            self.now += Duration::from_millis(ms);
            self.pace.settle(self.now, &self.done);
        }

        /// How much slower it says that it is than it was.
        fn factor(&self) -> f64 {
            let (now, then) = (self.pace.now(), measured());
            let factor = now.prefill[1].1.0 / then.prefill[1].1.0;
            assert!((now.decode[0].1.0 / then.decode[0].1.0 - factor).abs() < 1e-9);
            assert!((then.build_tokens_per_second / now.build_tokens_per_second - factor).abs() < 1e-9);
            factor
        }
    }

    #[test]
    fn a_speed_that_was_measured_wrong_follows_the_work() {
        for (ms, factor) in [(2, 0.1), (20, 1.0), (200, 10.0)] {
            let (mut prompts, mut builds) = (Machine::new(), Machine::new());
            for _ in 0..20 {
                prompts.span(ms, |done| done.rows_live += 200);
                builds.span(ms, |done| done.rows_built += 100);
            }
            for machine in [prompts, builds] {
                assert!(
                    (machine.factor() / factor).ln().abs() < 1.2_f64.ln(),
                    "{} {factor}",
                    machine.factor()
                );
            }
        }
    }

    #[test]
    fn one_odd_span_moves_it_little() {
        let mut machine = Machine::new();
        machine.span(2000, |done| done.rows_live += 200);
        assert!(machine.factor() < 2.0, "{}", machine.factor());
    }

    #[test]
    fn a_curve_that_falls_is_followed_too() {
        let mut machine = Machine::new();
        let prefill = [(64, 10.0), (256, 900.0), (1024, 500.0)];
        let prefill = prefill.map(|(rows, ms)| (Tokens(rows), Millis(ms))).into();
        machine.pace.set(Calibration { prefill, ..measured() });
        assert_eq!(machine.pace.now().prefill_of(64), Millis(10.0));
        for _ in 0..30 {
            machine.span(5000, |done| done.rows_live += 8000);
        }
        let found = machine.pace.now().prefill_of(8000).0;
        assert!((found / 5000.0).ln().abs() < 1.2_f64.ln(), "{found}");
    }

    #[test]
    fn answers_compositions_and_waiting_say_nothing() {
        let mut machine = Machine::new();
        machine.span(500, |done| done.rows_decoded += 200);
        machine.span(500, |done| done.rows_composed += 200);
        machine.span(500, |done| done.rows_live += 8);
        machine.pace.give(machine.now, &machine.done);
        machine.pace.rest();
        machine.now += Duration::from_secs(9);
        machine.span(20, |done| done.rows_live += 200);
        assert!((machine.factor() - 1.0).abs() < 1e-9, "{}", machine.factor());
    }

    #[test]
    fn what_was_not_measured_stays_unknown() {
        let mut machine = Machine::new();
        machine.pace = Pace::default();
        machine.span(20, |done| done.rows_built += 200);
        assert_eq!(machine.pace.now(), Calibration::default());
    }
}
