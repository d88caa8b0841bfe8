//! How fast the engine is: measured before it serves, and followed by what it computes since.

use std::time::{Duration, Instant};

use hypic_domain::unit::Millis;

use super::load::{Calibration, Counters};

/// Rows of prompts and builds under which a span says little: the shortest prompt that is timed.
const LEAST_ROWS: u64 = 64;
/// Share of one span in the average.
const SHARE: f64 = 1.0 / 8.0;
/// Without spans that say something, half of the slowness that they found is forgotten in this time. Chosen, not measured:
/// other work that slows a machine down, such as another agent's start, is over in minutes.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// The measured times, and how much longer work takes now than it took then.
///
/// A span is from the first rows that are given to an idle device until a result of the last of them has come to the host.
/// Its time over the predicted one moves an average of logarithms by an eighth, so that one odd span moves it little, and
/// after 20 spans a measurement that was wrong by ten is right to a fifth. Prompts, builds and answers all move together:
/// what changes with a machine's other work is its speed, not the shape of the curve, and a worker that only builds is
/// chosen by the time of its prompts. Spans of answers and compositions alone say nothing of prompts and are left out.
/// That work takes longer is forgotten while no spans come: an agent that was slow for a while, and gets no work for that, would
/// be slow for good. That it takes less is kept: then it was the measurement that a busy machine slowed down, and an agent that
/// looks too fast gets the work that puts it right.
#[derive(Default)]
pub(super) struct Pace {
    measured: Calibration,
    /// Natural logarithm of the time that work takes over the time that it took when it was measured, and when it was found;
    /// nothing before the first span.
    slower: Option<(f64, Instant)>,
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
        *self = Self { measured, slower: None, span: None };
    }

    /// What is left at `now` of what was found: slowness passes. Nothing is forgotten while a span lasts.
    fn slower(&self, now: Instant) -> f64 {
        let Some((slower, found)) = self.slower else { return 0.0 };
        let until = self.span.map_or(now, |(begun, _)| begun);
        let halvings = until.saturating_duration_since(found).div_duration_f64(HALF_LIFE);
        if slower > 0.0 { slower * (-halvings).exp2() } else { slower }
    }

    /// The times of `now`.
    pub(super) fn at(&self, now: Instant) -> Calibration {
        let factor = self.slower(now).exp();
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
        let slower = self.slower(now);
        let Some((begun, before)) = self.span.take() else { return };
        let rows = |of: fn(&Counters) -> u64| of(counters) - of(&before);
        let (live, built) = (rows(|counters| counters.rows_live), rows(|counters| counters.rows_built));
        if live + built < LEAST_ROWS {
            return;
        }
        let beside = rows(|counters| counters.rows_decoded + counters.rows_composed);
        let steps = rows(|counters| counters.steps);
        let predicted = self.measured.span_of(live + beside, built, steps).0;
        let moved = (now.duration_since(begun).as_secs_f64() * 1e3 / predicted).ln();
        // What took no time, or was predicted to take none, says nothing.
        if moved.is_finite() {
            self.slower = Some((slower + (moved - slower) * SHARE, now));
        }
    }

    /// There is nothing to compute: waiting is no work.
    pub(super) fn rest(&mut self) {
        self.span = None;
    }
}

#[cfg(test)]
mod tests;
