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
        let (now, then) = (self.pace.at(self.now), measured());
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
            assert!((machine.factor() / factor).ln().abs() < 1.2_f64.ln(), "{} {factor}", machine.factor());
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
    assert_eq!(machine.pace.at(machine.now).prefill_of(64), Millis(10.0));
    for _ in 0..30 {
        machine.span(5000, |done| done.rows_live += 8000);
    }
    let found = machine.pace.at(machine.now).prefill_of(8000).0;
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
fn without_work_an_agent_is_slow_no_longer_but_as_fast_as_it_was_found() {
    for (ms, found, passes) in [(200, 10.0_f64, true), (2, 0.1, false)] {
        let mut machine = Machine::new();
        for _ in 0..60 {
            machine.span(ms, |done| done.rows_live += 200);
        }
        let begun = machine.now;
        for (minutes, left) in [(0, 1.0), (1, 0.5), (2, 0.25), (20, 0.0)] {
            machine.now = begun + minutes * HALF_LIFE;
            // Answers are no work that says how fast prompts are.
            machine.span(0, |done| done.rows_decoded += 1);
            let expected = if passes { found.powf(left) } else { found };
            assert!((machine.factor() / expected).ln().abs() < 0.01, "{minutes} {}", machine.factor());
        }
    }
}

#[test]
fn nothing_is_forgotten_while_work_lasts() {
    let mut machine = Machine::new();
    for _ in 0..60 {
        machine.span(200_000, |done| done.rows_live += 200);
    }
    machine.pace.give(machine.now, &machine.done);
    machine.now += Duration::from_secs(100);
    assert!((machine.factor() / 10_000.0).ln().abs() < 0.01, "{}", machine.factor());
}

/// Time of a step: 2 ms and 10 us a row, and 5 us more for what a build keeps of it.
fn step(rows: u64, built: u64) -> f64 {
    2.0 + 0.01 * rows as f64 + 0.005 * built as f64
}

#[test]
fn steps_of_other_sizes_than_the_timed_ones_say_nothing_of_the_machine() {
    let timed = [64, 256, 1024].map(|rows| (Tokens(rows), Millis(step(rows.into(), 0))));
    let calibration =
        Calibration { prefill: timed.into(), build_tokens_per_second: 512e3 / step(512, 512), ..measured() };
    // Steps of a span, the rows of a prompt and of builds in each.
    for (steps, live, built) in
        [(1, 0, 512), (1, 0, 16 * 512), (3, 0, 4096), (1, 0, 64), (20, 512, 0), (1, 4096, 0), (4, 1024, 1024)]
    {
        let mut machine = Machine::new();
        machine.pace.set(calibration.clone());
        for _ in 0..60 {
            let ms = steps as f64 * step(live + built, built);
            machine.pace.give(machine.now, &machine.done);
            machine.done.steps += steps;
            machine.done.rows_live += steps * live;
            machine.done.rows_built += steps * built;
            machine.now += Duration::from_secs_f64(ms / 1e3);
            machine.pace.settle(machine.now, &machine.done);
        }
        let factor = machine.pace.at(machine.now).prefill[0].1.0 / step(64, 0);
        assert!((factor - 1.0).abs() < 0.01, "{steps} steps of {live} and {built}: {factor}");
    }
}

#[test]
fn short_steps_go_by_the_shortest_prompt_where_longer_ones_were_timed_on_a_busy_machine() {
    let prefill = [(64, 10.0), (256, 900.0), (1024, 1000.0)];
    let prefill = prefill.map(|(rows, ms)| (Tokens(rows), Millis(ms))).into();
    for (steps, rows) in [(1, 64), (2, 62), (3, 40)] {
        let mut machine = Machine::new();
        machine.pace.set(Calibration { prefill: Vec::clone(&prefill), ..measured() });
        for _ in 0..30 {
            // Twice as slow as the shortest prompt.
            machine.span(steps * rows * 20 / 64, |done| {
                done.rows_live += steps * rows;
                done.steps += steps;
            });
        }
        let found = machine.pace.at(machine.now).prefill_of(64).0;
        assert!((found / 20.0).ln().abs() < 1.2_f64.ln(), "{steps} steps of {rows}: {found}");
    }
}

#[test]
fn a_build_that_was_faster_than_its_prompt_has_a_time_of_its_own() {
    let calibration = Calibration { build_tokens_per_second: 20_000.0, ..measured() };
    assert!((calibration.span_of(0, 512, 1).0 - 25.6).abs() < 1e-9);
    assert!((calibration.span_of(512, 0, 1).0 - 51.2).abs() < 1e-9);
}

#[test]
fn what_was_not_measured_stays_unknown() {
    let mut machine = Machine::new();
    machine.pace = Pace::default();
    machine.span(20, |done| done.rows_built += 200);
    assert_eq!(machine.pace.at(machine.now), Calibration::default());
}
