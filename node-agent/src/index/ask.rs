//! Asking slot owners, this agent among them: who builds what.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_wire::proto;
use hypic_wire::status::Refusal;
use tokio::time::timeout;

use super::Index;

/// A slot owner that does not answer by then is passed over for its replica.
const ANSWER: Duration = Duration::from_millis(500);

/// [`Index`] as the scatter station asks it.
pub struct Owners(pub Arc<Index>);

impl hypic_scatter::Index for Owners {
    fn grant(
        &self,
        wishes: Vec<(SegmentKey, AgentId)>,
        ttl: Duration,
    ) -> BoxFuture<'static, Vec<Option<AgentId>>> {
        let index = Arc::clone(&self.0);
        Box::pin(async move { index.ask_all(&wishes, ttl).await })
    }
}

impl Index {
    /// Ends the grants of builds that their asker no longer waits for. An owner that is away lets them run out.
    ///
    /// A builder that works for another asker too loses its grant with the first: a third may then have the
    /// segment built a second time, which costs work and nothing else.
    pub async fn give_back(&self, wishes: &[(SegmentKey, AgentId)]) {
        self.ask_all(wishes, Duration::ZERO).await;
    }

    /// One question per owner; what an owner does not answer goes to the next replica.
    async fn ask_all(&self, wishes: &[(SegmentKey, AgentId)], ttl: Duration) -> Vec<Option<AgentId>> {
        let ring = Arc::clone(self.shard().ring());
        let keys: Vec<SegmentKey> = wishes.iter().map(|(key, _)| *key).collect();
        let mut builders = vec![None; wishes.len()];
        let mut away: Vec<&AgentId> = Vec::new();
        loop {
            let batches = ring.batches(&keys, |owner| !away.contains(&owner));
            let open = |places: &Vec<usize>| {
                places.iter().copied().filter(|place| builders[*place].is_none()).collect::<Vec<_>>()
            };
            let questions: Vec<(&AgentId, Vec<usize>)> = batches
                .iter()
                .map(|(owner, places)| (*owner, open(places)))
                .filter(|(_, places)| !places.is_empty())
                .collect();
            if questions.is_empty() {
                return builders;
            }
            let answers = questions.iter().map(|(owner, places)| {
                let wishes = places.iter().map(|place| wishes[*place].clone()).collect();
                async move { timeout(ANSWER, self.ask(owner, wishes, ttl)).await }
            });
            for ((owner, places), answer) in questions.iter().zip(join_all(answers).await) {
                match answer {
                    Ok(Ok(granted)) if granted.len() == places.len() => {
                        for (place, builder) in places.iter().zip(granted) {
                            builders[*place] = Some(builder);
                        }
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%owner, %error, "ask for a grant");
                        away.push(owner);
                    }
                    _ => away.push(owner),
                }
            }
        }
    }

    async fn ask(
        &self,
        owner: &AgentId,
        wishes: Vec<(SegmentKey, AgentId)>,
        ttl: Duration,
    ) -> Result<Vec<AgentId>, Refusal> {
        if *owner == self.membership.me {
            return wishes.iter().map(|(key, builder)| self.grant_here(key, builder, ttl)).collect();
        }
        let entry = self.membership.entry(owner)?;
        let mut client = self.membership.channels.index(&entry.control)?;
        let wishes = wishes
            .into_iter()
            .map(|(key, builder)| proto::GrantWish { key: key.0.to_vec(), builder: builder.0 });
        let request = proto::GrantRequest {
            epoch: self.membership.epoch().0,
            wishes: wishes.collect(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        };
        let response = client.grant(request).await.map_err(Refusal::from)?.into_inner();
        Ok(response.builders.into_iter().map(AgentId).collect())
    }
}
