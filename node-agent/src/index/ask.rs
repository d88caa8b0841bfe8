//! Asking slot owners, this agent among them: who builds what.

use std::time::Duration;

use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_wire::proto;
use hypic_wire::status::Refusal;
use tokio::time::timeout;

use super::Index;

/// A slot owner that does not answer by then is passed over: the segment may be built twice.
const ANSWER: Duration = Duration::from_millis(500);

impl Index {
    /// Single-flight: who builds `key` if `builder` wishes to. Owners are asked in turn; when none answers,
    /// the wish is granted, since a build too many only costs time.
    pub async fn granted(&self, key: SegmentKey, builder: AgentId, ttl: Duration) -> AgentId {
        let ring = { std::sync::Arc::clone(self.shard().ring()) };
        for owner in ring.owners(key.slot()) {
            let answer = if *owner == self.membership.me {
                self.grant_here(&key, &builder, ttl)
            } else {
                self.ask_grant(owner, key, &builder, ttl).await
            };
            match answer {
                Ok(agent) => return agent,
                Err(error) => tracing::debug!(%owner, %error, "ask for a grant"),
            }
        }
        builder
    }

    async fn ask_grant(
        &self,
        owner: &AgentId,
        key: SegmentKey,
        builder: &AgentId,
        ttl: Duration,
    ) -> Result<AgentId, Refusal> {
        let entry = self.membership.entry(owner)?;
        let mut client = self.membership.channels.index(&entry.control)?;
        let request = proto::GrantRequest {
            epoch: self.membership.epoch().0,
            wishes: vec![proto::GrantWish { key: key.0.to_vec(), builder: builder.0.clone() }],
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        };
        let answer = timeout(ANSWER, client.grant(request)).await;
        let response = answer.map_err(|_| Refusal::Deadline)?.map_err(Refusal::from)?.into_inner();
        let builder = response.builders.into_iter().next();
        builder.map(AgentId).ok_or_else(|| Refusal::Malformed { why: "no builder in the answer".to_owned() })
    }
}
