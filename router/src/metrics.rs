//! Every metric of the router, registered once and at zero from the start.
//!
//! Names are `hypic_router_<station>_<what>_<unit>`. Labels hold names of our own tables only, never text of
//! a request; so the number of series is fixed.

use std::time::Duration;

use hypic_domain::flow::{ColdReason, Mode, PromptCounts, ReadyState, SegmentOutcome};
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use crate::temperature::Temperature;

/// Endpoints as labels: route templates, never paths.
pub const ENDPOINTS: [&str; 7] =
    ["chat_completions", "completions", "models", "healthz", "readyz", "metrics", "unmatched"];
const STATUSES: [&str; 13] =
    ["200", "204", "400", "401", "403", "404", "405", "413", "429", "500", "502", "503", "504"];
/// Ways in which an answer ends early after its status was sent.
const CUT: [&str; 6] = [
    "deadline_exceeded",
    "agent_lost",
    "no_agent_ready",
    "rate_limit_exceeded",
    "shutting_down",
    "internal_error",
];
/// Of a look-up: a usable tuple is somewhere, or nowhere.
const OUTCOMES: [&str; 2] = ["warm", "cold"];

/// The metrics.
pub struct Metrics {
    registry: Registry,
    /// Answered HTTP requests by endpoint and status.
    pub requests: IntCounterVec,
    /// Streams that ended with an error event, and answers lost after their first token.
    pub cut: IntCounterVec,
    /// Clients that went away before their answer was complete.
    pub abandoned: IntCounter,
    /// Requests that wait for their turn.
    pub queued: IntGauge,
    /// Requests that run.
    pub running: IntGauge,
    /// Age of the oldest request that waits for capacity.
    pub admit_oldest_seconds: Gauge,
    /// Time in the queue.
    pub admit_seconds: Histogram,
    /// Time to cut a prompt.
    pub segment_seconds: Histogram,
    /// Tokens of prompts by how they were had.
    pub segment_tokens: IntCounterVec,
    /// Segments by what happened to them.
    pub segments: IntCounterVec,
    /// Segments that had to be built, by reason.
    pub cold: IntCounterVec,
    /// Segments per prompt.
    pub segments_per_request: Histogram,
    /// Time to ask the index.
    pub lookup_seconds: Histogram,
    /// Placed requests that compose and have segments, by whether one of these was cold.
    pub lookup_requests: IntCounterVec,
    /// Tokens of their segments, by whether somebody had a usable tuple.
    pub lookup_tokens: IntCounterVec,
    /// Time from arrival to the first token of those with a cold segment.
    pub cold_first_token_seconds: Histogram,
    /// Questions to the index that failed, by reason.
    pub lookup_failures: IntCounterVec,
    /// Time to solve a placement.
    pub schedule_seconds: Histogram,
    /// Requests started on another agent, before and after their first token.
    pub moved: IntCounterVec,
    /// Time from arrival to the first token, by mode.
    pub first_token_seconds: HistogramVec,
    /// Time between two messages of tokens of one request.
    pub token_gap_seconds: Histogram,
    /// Tokens of answers.
    pub answer_tokens: IntCounter,
    /// Agents in the topology, and those that can be used.
    pub agents: IntGaugeVec,
    /// Epoch of the topology.
    pub epoch: IntGauge,
    /// 1 while the tenants file is broken and an older one is in use.
    pub tenants_stale: IntGauge,
}

impl Metrics {
    /// Registers all metrics in `registry`.
    ///
    /// # Errors
    /// A name that is registered there already.
    pub fn new(registry: Registry) -> Result<Self, prometheus::Error> {
        let r = &registry;
        let mode_names = Mode::ALL.map(Mode::name);
        let metrics = Self {
            requests: counters(
                r,
                "http_requests_total",
                "Answered HTTP requests.",
                &[("endpoint", &ENDPOINTS), ("status", &STATUSES)],
            )?,
            cut: counters(r, "generate_cut_total", "Answers that ended early.", &[("reason", &CUT)])?,
            abandoned: counter(r, "generate_abandoned_total", "Clients that went away early.")?,
            queued: gauge(r, "admit_queued", "Requests that wait for their turn.")?,
            running: gauge(r, "admit_running", "Requests that run.")?,
            admit_oldest_seconds: float(
                r,
                "admit_oldest_seconds",
                "Age of the oldest request that waits for capacity.",
            )?,
            admit_seconds: histogram(r, "admit_seconds", "Time in the queue.", seconds())?,
            segment_seconds: histogram(r, "segment_seconds", "Time to cut a prompt.", seconds())?,
            segment_tokens: counters(
                r,
                "segment_tokens_total",
                "Tokens of prompts by how they were had.",
                &[("outcome", &["exact", "hit", "built", "seam", "live"])],
            )?,
            segments: counters(
                r,
                "segment_segments_total",
                "Segments by what happened to them.",
                &[("outcome", &["hit", "fetched", "built"])],
            )?,
            cold: counters(
                r,
                "segment_cold_total",
                "Segments that had to be built, by reason.",
                &[("reason", &ColdReason::ALL.map(ColdReason::name))],
            )?,
            segments_per_request: histogram(
                r,
                "segment_segments_per_request",
                "Segments per prompt.",
                doubling(1.0, 1024.0),
            )?,
            lookup_seconds: histogram(r, "lookup_seconds", "Time to ask the index.", fine_seconds())?,
            lookup_requests: counters(
                r,
                "lookup_requests_total",
                "Placed requests with segments, by whether one of these was cold.",
                &[("outcome", &OUTCOMES)],
            )?,
            lookup_tokens: counters(
                r,
                "lookup_tokens_total",
                "Tokens of segments, by whether somebody had a usable tuple.",
                &[("outcome", &OUTCOMES)],
            )?,
            cold_first_token_seconds: histogram(
                r,
                "cold_first_token_seconds",
                "Time from arrival to the first token of requests with a cold segment.",
                seconds(),
            )?,
            lookup_failures: counters(
                r,
                "lookup_failures_total",
                "Questions to the index that failed.",
                &[("reason", &["unreachable", "wrong_owner", "away"])],
            )?,
            schedule_seconds: histogram(r, "schedule_seconds", "Time to solve a placement.", fine_seconds())?,
            moved: counters(
                r,
                "generate_moved_total",
                "Requests started again on another agent.",
                &[("moment", &["before_first_token", "after_first_token"])],
            )?,
            first_token_seconds: histograms(
                r,
                "first_token_seconds",
                "Time from arrival to the first token.",
                seconds(),
                ("mode", &mode_names),
            )?,
            token_gap_seconds: histogram(
                r,
                "token_gap_seconds",
                "Time between two messages of tokens of one request.",
                seconds(),
            )?,
            answer_tokens: counter(r, "generate_tokens_total", "Tokens of answers.")?,
            agents: gauges(r, "fleet_agents", "Agents by state.", ("state", &["known", "usable"]))?,
            epoch: gauge(r, "fleet_epoch", "Epoch of the topology.")?,
            tenants_stale: gauge(r, "tenants_stale", "1 while the tenants file is broken.")?,
            registry,
        };
        Ok(metrics)
    }

    /// Counts what an agent said of a prompt.
    pub fn observe_ready(&self, ready: &ReadyState) {
        let PromptCounts { exact, hit, built, seam, live } = ready.counts;
        for (outcome, tokens) in
            [("exact", exact), ("hit", hit), ("built", built), ("seam", seam), ("live", live)]
        {
            self.segment_tokens.with_label_values(&[outcome]).inc_by(u64::from(tokens));
        }
        for report in &ready.segments {
            let outcome = match report.outcome {
                SegmentOutcome::Hit { .. } => "hit",
                SegmentOutcome::Fetched => "fetched",
                SegmentOutcome::Built { cold } => {
                    self.cold.with_label_values(&[cold.name()]).inc();
                    "built"
                }
            };
            self.segments.with_label_values(&[outcome]).inc();
        }
    }

    /// Counts a placed request by what the look-up found of its segments.
    pub fn observe_lookup(&self, temperature: &Temperature) {
        let Temperature { warm_tokens, cold_tokens, cold } = *temperature;
        let outcome = if cold { "cold" } else { "warm" };
        self.lookup_requests.with_label_values(&[outcome]).inc();
        self.lookup_tokens.with_label_values(&["warm"]).inc_by(warm_tokens);
        self.lookup_tokens.with_label_values(&["cold"]).inc_by(cold_tokens);
    }

    /// Counts an answered request; a status outside the table is counted as 500.
    pub fn observe_status(&self, endpoint: &'static str, status: u16) {
        let status = status.to_string();
        let status = if STATUSES.contains(&status.as_str()) { status.as_str() } else { "500" };
        self.requests.with_label_values(&[endpoint, status]).inc();
    }

    /// Counts an answer that ended early; a reason outside the table is an internal error.
    pub fn observe_cut(&self, reason: &'static str) {
        let reason = if CUT.contains(&reason) { reason } else { "internal_error" };
        self.cut.with_label_values(&[reason]).inc();
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// A metric that cannot be written.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Observes a duration in seconds.
pub fn observe(histogram: &Histogram, duration: Duration) {
    histogram.observe(duration.as_secs_f64());
}

/// Bounds from `first` to at least `last`, each twice the former.
fn doubling(first: f64, last: f64) -> Vec<f64> {
    std::iter::successors(Some(first), |bound| (*bound < last).then_some(bound * 2.0)).collect()
}

/// 1 ms to over 1000 s.
fn seconds() -> Vec<f64> {
    doubling(0.001, 1000.0)
}

/// 10 µs to over 10 s.
fn fine_seconds() -> Vec<f64> {
    doubling(0.000_01, 10.0)
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("hypic_router_{name}"), help)
}

fn counter(r: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::with_opts(opts(name, help))?;
    r.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(r: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::with_opts(opts(name, help))?;
    r.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn float(r: &Registry, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
    let gauge = Gauge::with_opts(opts(name, help))?;
    r.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

/// Counters of one or two labels, each combination at zero.
fn counters(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[(&str, &[&str])],
) -> Result<IntCounterVec, prometheus::Error> {
    let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
    let counters = IntCounterVec::new(opts(name, help), &names)?;
    r.register(Box::new(counters.clone()))?;
    let mut rows: Vec<Vec<&str>> = vec![Vec::new()];
    for (_, values) in labels {
        rows = rows
            .iter()
            .flat_map(|row| values.iter().map(move |value| row.iter().copied().chain([*value]).collect()))
            .collect();
    }
    for row in rows {
        counters.get_metric_with_label_values(&row)?;
    }
    Ok(counters)
}

fn gauges(
    r: &Registry,
    name: &str,
    help: &str,
    (label, values): (&str, &[&str]),
) -> Result<IntGaugeVec, prometheus::Error> {
    let gauges = IntGaugeVec::new(opts(name, help), &[label])?;
    r.register(Box::new(gauges.clone()))?;
    for value in values {
        gauges.get_metric_with_label_values(&[value])?;
    }
    Ok(gauges)
}

fn histogram(
    r: &Registry,
    name: &str,
    help: &str,
    buckets: Vec<f64>,
) -> Result<Histogram, prometheus::Error> {
    let options = HistogramOpts { common_opts: opts(name, help), buckets };
    let histogram = Histogram::with_opts(options)?;
    r.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}

fn histograms(
    r: &Registry,
    name: &str,
    help: &str,
    buckets: Vec<f64>,
    (label, values): (&str, &[&str]),
) -> Result<HistogramVec, prometheus::Error> {
    let options = HistogramOpts { common_opts: opts(name, help), buckets };
    let histograms = HistogramVec::new(options, &[label])?;
    r.register(Box::new(histograms.clone()))?;
    for value in values {
        histograms.get_metric_with_label_values(&[value])?;
    }
    Ok(histograms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.text().expect("encodes")).expect("text")
    }

    #[test]
    fn every_series_is_there_at_zero_and_traffic_adds_none() {
        let metrics = Metrics::new(Registry::new()).expect("fresh");
        let before = text(&metrics);
        assert!(before.contains("hypic_router_segment_cold_total{reason=\"corrupt\"} 0"));
        assert!(before.contains("hypic_router_http_requests_total{endpoint=\"unmatched\",status=\"404\"} 0"));
        for (endpoint, status) in [("unmatched", 404), ("chat_completions", 418), ("completions", 200)] {
            metrics.observe_status(endpoint, status);
        }
        assert_eq!(text(&metrics).lines().count(), before.lines().count());
    }

    #[test]
    fn every_wait_from_2_ms_to_600_s_has_a_bucket_at_most_twice_as_wide() {
        let bounds = seconds();
        for wait in [0.002, 0.3, 8.0, 90.0, 600.0] {
            let bound = bounds.iter().find(|bound| **bound >= wait).expect("finite");
            assert!(*bound <= 2.0 * wait, "{wait}");
        }
    }

    #[test]
    fn reasons_have_their_wire_names() {
        for reason in ColdReason::ALL {
            assert_eq!(serde_json::to_value(reason).expect("name"), reason.name());
        }
    }
}
