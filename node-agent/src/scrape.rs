//! What is counted elsewhere, read at scrape time as one table: engine, store, index, transport.

use std::sync::Arc;

use hypic_kernels::op::DeviceMemory;
use hypic_lookup::Counts;
use hypic_store::Store;
use hypic_wire::bulk::BulkCounts;
use hypic_wire::probes::Probed;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Gauge, IntCounter, Opts, Registry, TextEncoder};

use crate::agent::Agent;
use crate::engine::{Engine, Load};
use crate::index::Index;
use crate::life::Life;

/// The agent as its probes see it, from the start of the process on.
pub struct Scrape {
    /// The agent, once it is there.
    pub life: Arc<Life>,
    /// Its slots.
    pub index: Arc<Index>,
    /// What code counts by itself.
    pub registry: Registry,
}

/// One line of the table: the name after `hypic_agent_`, what it says, and its value.
type Row = (String, &'static str, Value);

enum Value {
    /// What may fall again.
    Now(f64),
    /// What only grows.
    Total(u64),
}

impl Probed for Scrape {
    fn ready(&self) -> Result<(), String> {
        self.life.ready()
    }

    fn metrics(&self) -> String {
        let mut families = self.registry.gather();
        match families_of(self.rows()) {
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
    /// Counters are there, at zero, before the agent is: their first step must be seen.
    fn rows(&self) -> Vec<Row> {
        let agent = self.life.agent().ok();
        let load = agent.map(|agent| agent.engine.load()).unwrap_or_default();
        let mut rows = of_engine(&load);
        rows.extend(of_device(agent.map(|agent| &agent.engine)));
        rows.extend(of_store(agent.map(|agent| &*agent.store)));
        rows.extend(of_index(&self.index.counts(), self.index.membership.epoch().0));
        rows.extend(of_transport(agent.map(|agent| &**agent)));
        rows
    }
}

fn now(name: &str, help: &'static str, value: impl Into<f64>) -> Row {
    (name.to_owned(), help, Value::Now(value.into()))
}

fn count(name: &str, help: &'static str, value: usize) -> Row {
    now(name, help, value as f64)
}

fn total(name: &str, help: &'static str, value: u64) -> Row {
    (name.to_owned(), help, Value::Total(value))
}

fn of_engine(load: &Load) -> Vec<Row> {
    let counts = load.counters;
    vec![
        count("decode_running", "Sequences that hold a slot.", load.running),
        count("decode_queued", "Sequences that wait for a slot.", load.queued),
        count("scatter_builds", "Builds that run or wait.", load.builds),
        now("compose_rows_ahead", "Rows needed before the next tokens.", load.rows_ahead as f64),
        count("decode_slots_free", "Free state slots.", load.slots_free),
        count("decode_slots", "State slots.", load.slots_total),
        count("decode_pages_free", "Free KV pages.", load.pages_free),
        count("decode_pages", "KV pages.", load.pages_total),
        count("compose_snapshots", "Prefix snapshots kept.", load.snapshots),
        count("compose_bodies", "Tuples that stay on the device.", load.bodies),
        total("compose_steps_total", "Steps of the engine.", counts.steps),
        total("decode_rows_total", "Rows of answers computed.", counts.rows_decoded),
        total("compose_live_rows_total", "Prompt rows computed in context.", counts.rows_live),
        total("compose_rows_total", "Rows of composed prompts.", counts.rows_composed),
        total("scatter_build_rows_total", "Rows of builds.", counts.rows_built),
        total("decode_tokens_total", "Tokens drawn.", counts.drawn),
        total("scatter_built_total", "Tuples built.", counts.built),
        total("scatter_built_further_total", "Those that further devices built.", counts.built_by_workers),
        total(
            "scatter_taken_back_total",
            "Builds that further devices did not end.",
            counts.builds_taken_back,
        ),
        total("decode_preempted_total", "Sequences computed again for want of pages.", counts.preempted),
        total("decode_cancelled_total", "Sequences cancelled.", counts.cancelled),
        now(
            "compose_live_head_share",
            "Share of built heads that store a transition.",
            load.live_share().unwrap_or(0.0),
        ),
    ]
}

/// Asked here and not with each step: steps need not know.
fn of_device(engine: Option<&Engine>) -> Vec<Row> {
    let memory = engine.map(Engine::memory).transpose().unwrap_or_else(|error| {
        tracing::error!(%error, "read the device's memory");
        None
    });
    let DeviceMemory { used, held } = memory.unwrap_or_default();
    vec![
        now("device_used_bytes", "Bytes in use of a device that is not the host.", used as f64),
        now("device_held_bytes", "Bytes that the driver holds for them.", held as f64),
    ]
}

fn of_store(store: Option<&Store>) -> Vec<Row> {
    let usage = store.map(Store::usage).unwrap_or_default();
    let mut rows = Vec::new();
    for usage in usage {
        let name = |what: &str| format!("store_{}_{what}", usage.tier.name());
        rows.extend([
            count(&name("tuples"), "Tuples in the tier.", usage.entries),
            now(&name("bytes"), "Bytes used of the tier.", usage.bytes.0 as f64),
            now(&name("cap_bytes"), "Cap of the tier.", usage.cap.0 as f64),
        ]);
    }
    let faults = store.map(Store::faults).unwrap_or_default();
    rows.extend([
        total("store_corrupt_total", "Damaged tuples dropped.", faults.corrupt),
        total("store_mismatch_total", "Tuples whose ids differed.", faults.mismatch),
        total("store_unreadable_total", "Passing read errors.", faults.unreadable),
        total("store_disk_full_total", "Writes that found the drive full.", faults.disk_full),
        total("store_write_failed_total", "Writes that failed for another reason.", faults.write_failed),
        total("store_remove_failed_total", "Files that could not be deleted.", faults.remove_failed),
        total("store_orphans_total", "Left-over or cut files deleted at the start.", faults.orphans),
        now(
            "store_disk_full",
            "1 while the drive is full.",
            u8::from(store.is_some_and(Store::disk_is_full)),
        ),
    ]);
    rows
}

fn of_index(counts: &Counts, epoch: u64) -> Vec<Row> {
    vec![
        count("lookup_keys", "Keys in the owned slots.", counts.keys),
        count("lookup_claims", "Claims of holders.", counts.claims),
        count("lookup_holders_whole", "Holders whose view is whole.", counts.whole),
        count("lookup_holders_partial", "Holders that must dump.", counts.partial),
        count("lookup_grants", "Builds under way.", counts.grants),
        total("lookup_refused_claims_total", "Claims without room.", counts.refused),
        now("lookup_epoch", "Epoch of the topology.", epoch as f64),
    ]
}

fn of_transport(agent: Option<&Agent>) -> Vec<Row> {
    let sides = agent.map(|agent| (agent.bulk.pulled.read(), agent.bulk.served.read()));
    let (pulled, served): (BulkCounts, BulkCounts) = sides.unwrap_or_default();
    let mut rows = Vec::new();
    for (side, counted) in [("pull", pulled), ("serve", served)] {
        let name = |what: &str| format!("transport_{side}_{what}_total");
        rows.extend([
            total(&name("bytes"), "Bytes of tensor parts.", counted.bytes),
            total(&name("parts"), "Tensor parts.", counted.parts),
            total(&name("checksum_failures"), "Parts with a wrong sum.", counted.checksum_failures),
        ]);
    }
    let leases = agent.map_or(0, |agent| agent.leases.len());
    rows.push(count("transport_leases", "Leases of peers.", leases));
    rows
}

/// A registry of the moment: values that others own need no second copy kept in step.
fn families_of(rows: Vec<Row>) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let registry = Registry::new();
    for (name, help, value) in rows {
        let opts = Opts::new(format!("hypic_agent_{name}"), help);
        match value {
            Value::Now(value) => {
                let gauge = Gauge::with_opts(opts)?;
                gauge.set(value);
                registry.register(Box::new(gauge))?;
            }
            Value::Total(value) => {
                let counter = IntCounter::with_opts(opts)?;
                counter.inc_by(value);
                registry.register(Box::new(counter))?;
            }
        }
    }
    Ok(registry.gather())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypic_domain::id::Incarnation;
    use hypic_domain::topology::Topology;
    use hypic_wire::channel::Channels;
    use hypic_wire::tls::Security;

    use super::*;
    use crate::membership::Membership;
    use crate::metrics::Metrics;

    #[test]
    fn every_counter_is_there_at_zero_before_the_model_is_loaded() {
        let registry = Registry::new();
        let _metrics = Metrics::new(&registry).unwrap();
        let channels = Arc::new(Channels::new(Security::Plain));
        let membership = Membership::new("a".into(), Incarnation(1), channels, Topology::default());
        let index = Arc::new(Index::new(Arc::new(membership)));
        let scrape = Scrape { life: Arc::default(), index, registry };
        let text = scrape.metrics();
        for counter in
            ["store_corrupt_total", "decode_preempted_total", "transport_pull_checksum_failures_total"]
        {
            assert!(text.contains(&format!("hypic_agent_{counter} 0\n")), "{counter}: {text}");
        }
        assert!(text.contains("hypic_agent_scatter_failures_total{reason=\"corrupt\"} 0"));
        assert!(scrape.ready().unwrap_err().contains("starting"));
        let help = text.lines().filter(|line| line.starts_with("# HELP ")).count();
        let kinds = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
        assert_eq!(help, kinds, "each family once");
    }
}
