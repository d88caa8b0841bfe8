//! Station lookup, the router's side: one batched question per slot owner. A failure costs a recompute and
//! nothing else: what nobody answers is cold.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use hypic_domain::flow::{Located, LocatedRequest, Mode, SegmentedRequest};
use hypic_domain::id::{AgentId, Epoch};
use hypic_domain::key::SegmentKey;
use hypic_domain::topology::AgentEntry;
use hypic_wire::channel::Channels;
use hypic_wire::proto::LocateRequest;
use hypic_wire::status::Refusal as PeerRefusal;
use hypic_wire::trace;

use crate::fleet_view::{AgentSeen, FleetView, Snapshot};
use crate::metrics::Metrics;

/// Questions to owners that know all of their slots, then to any, and once more to replicas or by a newer topology.
const ROUNDS: usize = 3;

/// What the index said of a request.
#[derive(Clone, Debug)]
pub struct Found {
    /// The request with holders beside its pieces and boundaries.
    pub located: LocatedRequest,
    /// Pieces of whose keys nobody could be asked.
    pub away: HashSet<usize>,
}

/// The client of the index.
pub struct IndexClient<'a> {
    /// Who owns what, and who lives.
    pub fleet: &'a FleetView,
    /// Connections.
    pub channels: &'a Channels,
    /// What went wrong is counted here.
    pub metrics: &'a Metrics,
    /// How long one question may take.
    pub timeout: Duration,
}

impl IndexClient<'_> {
    /// Asks for everything that the request's mode can use.
    pub async fn lookup(&self, segmented: SegmentedRequest) -> Found {
        let mode = segmented.request.mode;
        let pieces: Vec<usize> = match mode.composes() {
            true => segmented.segments().map(|(place, _)| place).collect(),
            false => Vec::new(),
        };
        let boundaries = match mode {
            Mode::Prefix | Mode::Pic => segmented.boundaries.len(),
            Mode::Recompute | Mode::Add | Mode::Last => 0,
        };
        let piece_keys = pieces.iter().filter_map(|place| segmented.pieces[*place].key);
        let snapshot_keys = segmented.boundaries[..boundaries].iter().map(|(_, key)| *key);
        let keys: Vec<SegmentKey> = piece_keys.chain(snapshot_keys).collect();

        let mut answers = self.ask_all(&keys).await.into_iter();
        let mut located = vec![Located::default(); segmented.pieces.len()];
        let mut away = HashSet::new();
        for (place, answer) in pieces.iter().zip(answers.by_ref()) {
            match answer {
                Some(answer) => located[*place] = answer,
                None => drop(away.insert(*place)),
            }
        }
        let mut snapshots: Vec<Located> = answers.map(Option::unwrap_or_default).collect();
        snapshots.resize(segmented.boundaries.len(), Located::default());
        if !away.is_empty() {
            self.metrics.lookup_failures.with_label_values(&["away"]).inc();
            tracing::warn!(segments = away.len(), "the index is away for a part of the keys");
        }
        Found { located: LocatedRequest { segmented, located, snapshots }, away }
    }

    /// The answers beside the keys; `None` where nobody answered.
    async fn ask_all(&self, keys: &[SegmentKey]) -> Vec<Option<Located>> {
        let mut answers: Vec<Option<Located>> = vec![None; keys.len()];
        let mut failed: HashSet<AgentId> = HashSet::new();
        for round in 0..ROUNDS {
            let open: Vec<usize> = (0..keys.len()).filter(|place| answers[*place].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let snapshot = self.fleet.snapshot();
            let open_keys: Vec<SegmentKey> = open.iter().map(|place| keys[*place]).collect();
            let asks = |agent: &AgentSeen| round > 0 || agent.seen.index_whole;
            let lives = |id: &AgentId| !failed.contains(id) && snapshot.agent(id).is_some_and(asks);
            let batches = snapshot.ring.batches(&open_keys, lives);
            let epoch = snapshot.topology.epoch;
            let asked = batches.iter().filter_map(|(owner, places)| {
                let entry = snapshot.topology.agent(owner)?;
                let batch = places.iter().map(|place| open_keys[*place]).collect::<Vec<_>>();
                Some(async move { (entry, places, self.ask(entry, &batch, epoch).await) })
            });
            let mut lost = Vec::new();
            for (entry, places, answer) in join_all(asked).await {
                match answer {
                    Ok(located) => {
                        for (place, located) in places.iter().zip(located) {
                            answers[open[*place]] = Some(living(located, &snapshot));
                        }
                    }
                    Err(refusal) => {
                        self.count(entry, &refusal);
                        // A wrong owner lives: after a newer topology it may be the right one.
                        if !matches!(refusal, PeerRefusal::WrongOwner { .. }) {
                            lost.push(entry.id.clone());
                        }
                    }
                }
            }
            failed.extend(lost);
        }
        answers
    }

    async fn ask(
        &self,
        owner: &AgentEntry,
        keys: &[SegmentKey],
        epoch: Epoch,
    ) -> Result<Vec<Located>, PeerRefusal> {
        let mut index = self.channels.index(&owner.control)?;
        let keys_sent = keys.iter().map(|key| key.0.to_vec()).collect();
        let mut request = tonic::Request::new(LocateRequest { epoch: epoch.0, keys: keys_sent });
        trace::inject(request.metadata_mut());
        let response = tokio::time::timeout(self.timeout, index.locate(request))
            .await
            .map_err(|_| PeerRefusal::Deadline)??
            .into_inner();
        if response.located.len() != keys.len() {
            let why = format!("{} answers to {} keys", response.located.len(), keys.len());
            return Err(PeerRefusal::Malformed { why });
        }
        let located = response.located.into_iter().map(Located::try_from);
        Ok(located.collect::<Result<_, _>>()?)
    }

    fn count(&self, owner: &AgentEntry, refusal: &PeerRefusal) {
        let reason = match refusal {
            PeerRefusal::WrongOwner { .. } => "wrong_owner",
            _ => "unreachable",
        };
        self.metrics.lookup_failures.with_label_values(&[reason]).inc();
        tracing::debug!(owner = %owner.id, %refusal, "a slot owner did not answer");
    }
}

/// Drops holders that are gone or live another life by now.
fn living(mut located: Located, snapshot: &Snapshot) -> Located {
    located.holders.retain(|holder| {
        snapshot.agent(&holder.agent).is_some_and(|agent| agent.seen.incarnation == holder.incarnation)
    });
    located
}
