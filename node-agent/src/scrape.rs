//! What is counted elsewhere, read at scrape time: engine, store, index, transport.

use std::sync::Arc;

use hypic_wire::bulk::BulkCounters;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Gauge, IntCounter, IntGauge, Opts, Registry, TextEncoder};

use crate::agent::Agent;
use crate::probes::Probed;

/// The agent as its probes see it.
pub struct Scrape {
    /// Whom to ask.
    pub agent: Arc<Agent>,
    /// What code counts by itself.
    pub registry: Registry,
    /// The receiving side of the bulk transport.
    pub pulled: Arc<BulkCounters>,
    /// The sending side.
    pub served: Arc<BulkCounters>,
}

impl Probed for Scrape {
    fn ready(&self) -> Result<(), String> {
        self.agent.ready().map_err(|refusal| refusal.to_string())?;
        if self.agent.index.is_told() { Ok(()) } else { Err("announcing to the index".to_owned()) }
    }

    fn metrics(&self) -> String {
        let mut families = self.registry.gather();
        match self.read() {
            Ok(read) => families.extend(read),
            Err(error) => tracing::error!(%error, "read the metrics"),
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            tracing::error!(%error, "encode the metrics");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Scrape {
    /// A registry of the moment: values that others own need no second copy kept in step.
    fn read(&self) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let now = Now(Registry::new());
        let load = self.agent.engine.load();
        let counts = load.counters;
        now.gauge("hypic_agent_decode_running", "Sequences that hold a slot.", load.running as u64)?;
        now.gauge("hypic_agent_decode_queued", "Sequences that wait for a slot.", load.queued as u64)?;
        now.gauge("hypic_agent_scatter_builds", "Builds that run or wait.", load.builds as u64)?;
        now.gauge("hypic_agent_compose_rows_ahead", "Rows needed before the next tokens.", load.rows_ahead)?;
        now.gauge("hypic_agent_decode_slots_free", "Free state slots.", load.slots_free as u64)?;
        now.gauge("hypic_agent_decode_slots", "State slots.", load.slots_total as u64)?;
        now.gauge("hypic_agent_decode_pages_free", "Free KV pages.", load.pages_free as u64)?;
        now.gauge("hypic_agent_decode_pages", "KV pages.", load.pages_total as u64)?;
        now.gauge("hypic_agent_compose_snapshots", "Prefix snapshots kept.", load.snapshots as u64)?;
        now.counter("hypic_agent_compose_steps_total", "Steps of the engine.", counts.steps)?;
        now.counter("hypic_agent_decode_rows_total", "Rows of answers computed.", counts.rows_decoded)?;
        now.counter(
            "hypic_agent_compose_live_rows_total",
            "Prompt rows computed in context.",
            counts.rows_live,
        )?;
        now.counter("hypic_agent_compose_rows_total", "Rows of composed prompts.", counts.rows_composed)?;
        now.counter("hypic_agent_scatter_build_rows_total", "Rows of builds.", counts.rows_built)?;
        now.counter("hypic_agent_decode_tokens_total", "Tokens drawn.", counts.drawn)?;
        now.counter("hypic_agent_scatter_built_total", "Tuples built.", counts.built)?;
        now.counter(
            "hypic_agent_decode_preempted_total",
            "Sequences computed again for want of pages.",
            counts.preempted,
        )?;
        now.counter("hypic_agent_decode_cancelled_total", "Sequences cancelled.", counts.cancelled)?;
        let share = load.live_share().unwrap_or(0.0);
        now.float(
            "hypic_agent_compose_live_head_share",
            "Share of built heads that store a transition.",
            share,
        )?;
        self.read_store(&now)?;
        self.read_index(&now)?;
        for (side, counters) in [("pull", &self.pulled), ("serve", &self.served)] {
            let counted = counters.read();
            let name = |what: &str| format!("hypic_agent_transport_{side}_{what}_total");
            now.counter(&name("bytes"), "Bytes of tensor parts.", counted.bytes)?;
            now.counter(&name("parts"), "Tensor parts.", counted.parts)?;
            now.counter(&name("checksum_failures"), "Parts with a wrong sum.", counted.checksum_failures)?;
        }
        now.gauge("hypic_agent_transport_leases", "Leases of peers.", self.agent.leases.len() as u64)?;
        Ok(now.0.gather())
    }

    fn read_store(&self, now: &Now) -> Result<(), prometheus::Error> {
        for usage in self.agent.store.usage() {
            let name = |what: &str| format!("hypic_agent_store_{}_{what}", usage.tier.name());
            now.gauge(&name("tuples"), "Tuples in the tier.", usage.entries as u64)?;
            now.gauge(&name("bytes"), "Bytes used of the tier.", usage.bytes.0)?;
            now.gauge(&name("cap_bytes"), "Cap of the tier.", usage.cap.0)?;
        }
        let faults = self.agent.store.faults();
        now.counter("hypic_agent_store_corrupt_total", "Damaged tuples dropped.", faults.corrupt)?;
        now.counter("hypic_agent_store_mismatch_total", "Tuples whose ids differed.", faults.mismatch)?;
        now.counter("hypic_agent_store_unreadable_total", "Passing read errors.", faults.unreadable)?;
        now.counter(
            "hypic_agent_store_disk_full_total",
            "Writes that found the drive full.",
            faults.disk_full,
        )?;
        let count = |what: &str, help: &str, value: u64| {
            now.counter(&format!("hypic_agent_store_{what}_total"), help, value)
        };
        count("write_failed", "Writes that failed for another reason.", faults.write_failed)?;
        count("remove_failed", "Files that could not be deleted.", faults.remove_failed)?;
        count("orphans", "Left-over or cut files deleted at the start.", faults.orphans)?;
        let full = u64::from(self.agent.store.disk_is_full());
        now.gauge("hypic_agent_store_disk_full", "1 while the drive is full.", full)
    }

    fn read_index(&self, now: &Now) -> Result<(), prometheus::Error> {
        let counts = self.agent.index.counts();
        now.gauge("hypic_agent_lookup_keys", "Keys in the owned slots.", counts.keys as u64)?;
        now.gauge("hypic_agent_lookup_claims", "Claims of holders.", counts.claims as u64)?;
        now.gauge("hypic_agent_lookup_holders_whole", "Holders whose view is whole.", counts.whole as u64)?;
        now.gauge("hypic_agent_lookup_holders_partial", "Holders that must dump.", counts.partial as u64)?;
        now.gauge("hypic_agent_lookup_grants", "Builds under way.", counts.grants as u64)?;
        now.counter("hypic_agent_lookup_refused_claims_total", "Claims without room.", counts.refused)?;
        now.gauge("hypic_agent_lookup_epoch", "Epoch of the topology.", self.agent.membership.epoch().0)
    }
}

/// A registry that lives for one scrape.
struct Now(Registry);

impl Now {
    fn gauge(&self, name: &str, help: &str, value: u64) -> Result<(), prometheus::Error> {
        let gauge = IntGauge::with_opts(Opts::new(name, help))?;
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.0.register(Box::new(gauge))
    }

    fn float(&self, name: &str, help: &str, value: f64) -> Result<(), prometheus::Error> {
        let gauge = Gauge::with_opts(Opts::new(name, help))?;
        gauge.set(value);
        self.0.register(Box::new(gauge))
    }

    fn counter(&self, name: &str, help: &str, value: u64) -> Result<(), prometheus::Error> {
        let counter = IntCounter::with_opts(Opts::new(name, help))?;
        counter.inc_by(value);
        self.0.register(Box::new(counter))
    }
}
