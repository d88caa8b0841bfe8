//! Every metric of the agent, registered once and at zero from the start. Names are
//! `hypic_agent_<station>_<what>_<unit>`; labels hold names of our own tables only.

use hypic_domain::flow::ColdReason;
use hypic_store::StoredTuple;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// The counters that code counts by itself; what others count is read at scrape time.
pub struct Metrics {
    /// Orders begun.
    pub orders: IntCounter,
    /// Build orders of peers begun.
    pub build_orders: IntCounter,
    /// Tuples that came from other agents.
    pub received_tuples: IntCounter,
    /// Bytes of them, manifests left out.
    pub received_bytes: IntCounter,
    /// Sources that failed, by reason.
    failed: IntCounterVec,
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// A name that is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            keep(registry, counter)
        };
        let opts = Opts::new(
            "hypic_agent_scatter_failures_total",
            "Sources of tuples that failed, by reason; the segment may still have come from another one.",
        );
        let failed = keep(registry, IntCounterVec::new(opts, &["reason"])?)?;
        for reason in ColdReason::ALL {
            failed.with_label_values(&[reason.name()]);
        }
        Ok(Self {
            orders: counter("hypic_agent_compose_orders_total", "Orders of routers begun.")?,
            build_orders: counter("hypic_agent_build_orders_total", "Build orders of other agents begun.")?,
            received_tuples: counter(
                "hypic_agent_scatter_received_tuples_total",
                "Whole tuples that came from other agents.",
            )?,
            received_bytes: counter(
                "hypic_agent_scatter_received_bytes_total",
                "Bytes of parts of tuples that came from other agents.",
            )?,
            failed,
        })
    }

    /// Counts a failed source.
    pub fn source_failed(&self, reason: ColdReason) {
        self.failed.with_label_values(&[reason.name()]).inc();
    }

    /// Counts a tuple from another agent.
    pub fn received(&self, tuple: &StoredTuple) {
        self.received_tuples.inc();
        self.received_bytes.inc_by(tuple.manifest().part_bytes().0);
    }
}

fn keep<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
