//! Every metric of the operator, registered once. What can be counted without any object is there at zero from the
//! start; series of clusters and pools come with them and go with them.

use std::collections::HashMap;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

/// Seconds; an unchanged object takes milliseconds, a new one as long as its writes do.
const SECONDS: [f64; 10] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// Kinds that are reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With its scatter pools.
    HypicCluster,
    /// A model.
    HypicModel,
}

impl Kind {
    const ALL: [Self; 2] = [Self::HypicCluster, Self::HypicModel];

    /// The label's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::HypicCluster => "HypicCluster",
            Self::HypicModel => "HypicModel",
        }
    }
}

/// A cluster as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterGauges {
    /// Its condition `Ready` is true.
    pub ready: bool,
    /// Its condition `Degraded` is true.
    pub degraded: bool,
    /// Its condition `IndexConsistent` is true.
    pub index_consistent: bool,
    /// Epoch of the topology that is pushed.
    pub topology_epoch: u64,
}

/// A pool of scatter workers as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolGauges {
    /// Workers wanted.
    pub desired: u32,
    /// Workers ready.
    pub ready: u32,
    /// Nothing is decided, for want of counters.
    pub frozen: bool,
    /// Share of segment tokens that were cold, 0 to 1.
    pub cold_share: f64,
    /// Cold tokens per second.
    pub demand: f64,
}

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    leader: Gauge,
    reconciles: IntCounterVec,
    seconds: HistogramVec,
    pushes: IntCounterVec,
    cluster: ClusterSeries,
    pool: PoolSeries,
}

struct ClusterSeries {
    ready: GaugeVec,
    degraded: GaugeVec,
    index_consistent: GaugeVec,
    topology_epoch: GaugeVec,
}

struct PoolSeries {
    replicas: GaugeVec,
    frozen: GaugeVec,
    cold_share: GaugeVec,
    demand: GaugeVec,
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// A name that is taken.
    pub fn new(registry: Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            keep(&registry, GaugeVec::new(Opts::new(format!("hypic_operator_{name}"), help), labels)?)
        };
        let cluster = |name, help| gauge(name, help, &["namespace", "cluster"]);
        let pool = |name, help| gauge(name, help, &["namespace", "cluster", "pool"]);

        let leader = Gauge::new("hypic_operator_leader", "Whether this replica leads: 1 or 0.")?;
        let reconciles = IntCounterVec::new(
            Opts::new("hypic_operator_reconcile_total", "Reconciliations, by kind and result."),
            &["kind", "result"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new("hypic_operator_reconcile_seconds", "Time of a reconciliation, by kind.")
                .buckets(SECONDS.to_vec()),
            &["kind"],
        )?;
        let pushes = IntCounterVec::new(
            Opts::new("hypic_operator_pushes_total", "Topologies pushed to agents and routers, by result."),
            &["result"],
        )?;
        for kind in Kind::ALL.map(Kind::name) {
            seconds.with_label_values(&[kind]);
            for result in RESULTS {
                reconciles.with_label_values(&[kind, result]);
            }
        }
        for result in RESULTS {
            pushes.with_label_values(&[result]);
        }
        Ok(Self {
            leader: keep(&registry, leader)?,
            reconciles: keep(&registry, reconciles)?,
            seconds: keep(&registry, seconds)?,
            pushes: keep(&registry, pushes)?,
            cluster: ClusterSeries {
                ready: cluster("cluster_ready", "Whether the cluster's condition Ready is true.")?,
                degraded: cluster("cluster_degraded", "Whether the cluster's condition Degraded is true.")?,
                index_consistent: cluster(
                    "index_consistent",
                    "Whether the cluster's condition IndexConsistent is true.",
                )?,
                topology_epoch: cluster("topology_epoch", "Epoch of the topology that is pushed.")?,
            },
            pool: PoolSeries {
                replicas: gauge(
                    "scatter_replicas",
                    "Scatter workers, desired and ready.",
                    &["namespace", "cluster", "pool", "state"],
                )?,
                frozen: pool("scatter_frozen", "Whether nothing is decided, for want of counters.")?,
                cold_share: pool("scatter_cold_share_ratio", "Share of segment tokens that were cold.")?,
                demand: pool("scatter_demand_tokens_per_second", "Cold tokens per second.")?,
            },
            registry,
        })
    }

    /// Says whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(flag(leads));
    }

    /// Counts a reconciliation.
    pub fn reconciled(&self, kind: Kind, seconds: f64, ok: bool) {
        self.reconciles.with_label_values(&[kind.name(), result(ok)]).inc();
        self.seconds.with_label_values(&[kind.name()]).observe(seconds);
    }

    /// Counts a push to one part.
    pub fn pushed(&self, ok: bool) {
        self.pushes.with_label_values(&[result(ok)]).inc();
    }

    /// Shows a cluster.
    pub fn cluster(&self, namespace: &str, cluster: &str, gauges: ClusterGauges) {
        let ClusterGauges { ready, degraded, index_consistent, topology_epoch } = gauges;
        let set = |series: &GaugeVec, value| series.with_label_values(&[namespace, cluster]).set(value);
        set(&self.cluster.ready, flag(ready));
        set(&self.cluster.degraded, flag(degraded));
        set(&self.cluster.index_consistent, flag(index_consistent));
        set(&self.cluster.topology_epoch, topology_epoch as f64);
    }

    /// Shows a pool of scatter workers.
    pub fn pool(&self, namespace: &str, cluster: &str, pool: &str, gauges: PoolGauges) {
        let PoolGauges { desired, ready, frozen, cold_share, demand } = gauges;
        for (state, count) in [("desired", desired), ("ready", ready)] {
            self.pool.replicas.with_label_values(&[namespace, cluster, pool, state]).set(count.into());
        }
        let set = |series: &GaugeVec, value| series.with_label_values(&[namespace, cluster, pool]).set(value);
        set(&self.pool.frozen, flag(frozen));
        set(&self.pool.cold_share, cold_share);
        set(&self.pool.demand, demand);
    }

    /// Removes the series of a cluster that is gone, its pools' too.
    pub fn forget_cluster(&self, namespace: &str, cluster: &str) {
        self.forget(&[("namespace", namespace), ("cluster", cluster)]);
    }

    /// Removes the series of a pool that is gone.
    pub fn forget_pool(&self, namespace: &str, cluster: &str, pool: &str) {
        self.forget(&[("namespace", namespace), ("cluster", cluster), ("pool", pool)]);
    }

    /// Everything in the text format.
    pub fn text(&self) -> String {
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
            tracing::error!(%error, "metrics cannot be written");
            String::new()
        })
    }

    fn forget(&self, of: &[(&str, &str)]) {
        let ClusterSeries { ready, degraded, index_consistent, topology_epoch } = &self.cluster;
        let PoolSeries { replicas, frozen, cold_share, demand } = &self.pool;
        for series in
            [ready, degraded, index_consistent, topology_epoch, replicas, frozen, cold_share, demand]
        {
            forget(series, of);
        }
    }
}

const RESULTS: [&str; 2] = [result(true), result(false)];

const fn result(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

/// Removes every series with all of these labels.
fn forget(series: &GaugeVec, of: &[(&str, &str)]) {
    for family in series.collect() {
        for metric in family.get_metric() {
            let labels: HashMap<_, _> =
                metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if of.iter().all(|(name, value)| labels.get(name) == Some(value)) {
                // Fails only for what is gone already.
                let _ = series.remove(&labels);
            }
        }
    }
}

fn keep<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new(Registry::new()).unwrap()
    }

    fn lines(metrics: &Metrics, with: &str) -> Vec<String> {
        let text = metrics.text();
        text.lines().filter(|line| !line.starts_with('#') && line.contains(with)).map(str::to_owned).collect()
    }

    #[test]
    fn what_needs_no_object_is_there_at_zero() {
        let text = metrics().text();
        for series in [
            "leader",
            "reconcile_total{kind=\"HypicCluster\",result=\"ok\"}",
            "reconcile_total{kind=\"HypicModel\",result=\"error\"}",
            "reconcile_seconds_count{kind=\"HypicModel\"}",
            "pushes_total{result=\"ok\"}",
            "pushes_total{result=\"error\"}",
        ] {
            assert!(text.contains(&format!("hypic_operator_{series} 0\n")), "{series}: {text}");
        }
    }

    #[test]
    fn what_happens_is_counted_by_result() {
        let metrics = metrics();
        metrics.leads(true);
        metrics.reconciled(Kind::HypicCluster, 0.002, true);
        metrics.reconciled(Kind::HypicCluster, 2.0, false);
        metrics.pushed(false);
        let text = metrics.text();
        for series in [
            "leader 1",
            "reconcile_total{kind=\"HypicCluster\",result=\"ok\"} 1",
            "reconcile_total{kind=\"HypicCluster\",result=\"error\"} 1",
            "reconcile_seconds_bucket{kind=\"HypicCluster\",le=\"0.0025\"} 1",
            "reconcile_seconds_count{kind=\"HypicCluster\"} 2",
            "pushes_total{result=\"error\"} 1",
            "pushes_total{result=\"ok\"} 0",
        ] {
            assert!(text.contains(&format!("hypic_operator_{series}\n")), "{series}: {text}");
        }
    }

    #[test]
    fn series_of_what_is_gone_go_and_others_stay() {
        let metrics = metrics();
        let cluster =
            ClusterGauges { ready: true, degraded: false, index_consistent: true, topology_epoch: 7 };
        let pool = PoolGauges { desired: 3, ready: 2, frozen: false, cold_share: 0.25, demand: 1500.0 };
        for (namespace, name) in [("one", "a"), ("one", "b"), ("two", "a")] {
            metrics.cluster(namespace, name, cluster);
            metrics.pool(namespace, name, "p", pool);
            metrics.pool(namespace, name, "q", pool);
        }
        assert_eq!(
            lines(&metrics, "scatter_replicas{cluster=\"b\",namespace=\"one\",pool=\"q\""),
            [
                "hypic_operator_scatter_replicas{cluster=\"b\",namespace=\"one\",pool=\"q\",state=\"desired\"} 3",
                "hypic_operator_scatter_replicas{cluster=\"b\",namespace=\"one\",pool=\"q\",state=\"ready\"} 2",
            ]
        );
        let of = |cluster, namespace| {
            lines(&metrics, &format!("cluster=\"{cluster}\",namespace=\"{namespace}\"")).len()
        };
        assert_eq!((of("a", "one"), of("b", "one"), of("a", "two")), (14, 14, 14));
        metrics.forget_cluster("one", "a");
        metrics.forget_pool("two", "a", "q");
        metrics.forget_pool("two", "never", "seen");
        assert_eq!((of("a", "one"), of("b", "one"), of("a", "two")), (0, 14, 9));
    }
}
