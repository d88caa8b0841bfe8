//! The router's gRPC face, for whoever steers the fleet: topologies in, counters out.

use std::sync::Arc;
use std::time::Instant;

use hypic_domain::topology::TopologySource;
use hypic_wire::proto::fleet_server::Fleet;
use hypic_wire::proto::{
    AgentRole, AgentState, PushTopologyRequest, PushTopologyResponse, ReadCountersRequest,
    ReadCountersResponse,
};
use hypic_wire::serve::check_steers;
use hypic_wire::status::Refusal as PeerRefusal;
use prometheus::core::Metric;
use tonic::{Request, Response, Status};

use crate::admission::Admission;
use crate::fleet_view::{FleetView, Snapshot};
use crate::metrics::Metrics;

/// The fleet service of the router.
pub struct FleetService {
    fleet: Arc<FleetView>,
    admission: Admission,
    metrics: Arc<Metrics>,
    /// Of this process life: counters of another one start at zero.
    incarnation: u64,
    begun: Instant,
}

impl FleetService {
    /// Begins a life.
    pub fn new(fleet: Arc<FleetView>, admission: Admission, metrics: Arc<Metrics>) -> Self {
        Self { fleet, admission, metrics, incarnation: rand::random(), begun: Instant::now() }
    }

    /// What scaling goes by.
    pub fn counters(&self) -> ReadCountersResponse {
        let snapshot = self.fleet.snapshot();
        let (epoch, revision) = snapshot.topology.version();
        let requests = |outcome: &str| self.metrics.lookup_requests.with_label_values(&[outcome]).get();
        let tokens = |outcome: &str| self.metrics.lookup_tokens.with_label_values(&[outcome]).get();
        let (cold_requests, cold_tokens) = (requests("cold"), tokens("cold"));
        ReadCountersResponse {
            incarnation: self.incarnation,
            epoch: epoch.0,
            revision,
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            requests: cold_requests + requests("warm"),
            cold_requests,
            segment_tokens: cold_tokens + tokens("warm"),
            cold_tokens,
            cold_first_token_ms_counts: self.cold_first_token_counts(),
            queue_age_seconds: self.admission.oldest().map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()),
            agents: agents(&snapshot),
        }
    }

    /// Counts per bucket, not summed up as Prometheus has them. The buckets are 1 ms, 2 ms, 4 ms, ... and open.
    fn cold_first_token_counts(&self) -> Vec<u64> {
        let metric = self.metrics.cold_first_token_seconds.metric();
        let histogram = metric.get_histogram();
        let sums = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
        let mut below = 0;
        sums.chain([histogram.get_sample_count()])
            .map(|sum| {
                // Observations may come in between; the next answer has them.
                let count = sum.saturating_sub(below);
                below = sum.max(below);
                count
            })
            .collect()
    }
}

fn agents(snapshot: &Snapshot) -> Vec<AgentState> {
    let entries = snapshot.topology.agents.iter();
    entries
        .map(|entry| {
            let usable = snapshot.usable().any(|agent| agent.entry.id == entry.id);
            let state = snapshot.agent(&entry.id).map(|agent| agent.seen.state.clone()).unwrap_or_default();
            AgentState { id: entry.id.0.clone(), role: AgentRole::from(entry.role).into(), usable, ..state }
        })
        .collect()
}

#[tonic::async_trait]
impl Fleet for FleetService {
    async fn push_topology(
        &self,
        request: Request<PushTopologyRequest>,
    ) -> Result<Response<PushTopologyResponse>, Status> {
        check_steers(&request)?;
        let Some(topology) = request.into_inner().topology else {
            return Err(PeerRefusal::Malformed { why: "field 'topology' is missing".to_owned() }.into());
        };
        let topology = topology.try_into().map_err(PeerRefusal::from)?;
        let ((epoch, revision), accepted) = self.fleet.adopt(topology, TopologySource::Push);
        tracing::info!(%epoch, revision, accepted, "topology pushed");
        Ok(Response::new(PushTopologyResponse { epoch: epoch.0, revision, accepted }))
    }

    async fn read_counters(
        &self,
        request: Request<ReadCountersRequest>,
    ) -> Result<Response<ReadCountersResponse>, Status> {
        check_steers(&request)?;
        Ok(Response::new(self.counters()))
    }
}
