//! Telling the slot owners: one task per owner, one message on its way at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hypic_domain::id::AgentId;
use hypic_domain::topology::AgentRole;
use hypic_lookup::{Message, Verdict};
use hypic_wire::status::Refusal;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Index, convert};

/// A quiet owner is spoken to this often: one that lost its memory notices only then.
const BEAT: Duration = Duration::from_secs(2);
/// Pause after an answer that only time can change.
const PAUSE: Duration = Duration::from_millis(200);
/// An owner that does not answer by then is asked again.
const ANSWER: Duration = Duration::from_secs(5);

impl Index {
    /// Announces for ever, to every owner of the newest topology.
    pub async fn announce_all(self: Arc<Self>) {
        let mut changes = self.membership.changes();
        let mut tasks = JoinSet::new();
        let mut owners = HashMap::new();
        loop {
            let topology = Arc::clone(&changes.borrow_and_update());
            let now: Vec<AgentId> =
                topology.of_role(AgentRole::Combine).map(|agent| agent.id.clone()).collect();
            owners.retain(|owner, task: &mut tokio::task::AbortHandle| {
                let stays = now.contains(owner);
                if !stays {
                    task.abort();
                }
                stays
            });
            for owner in now {
                owners
                    .entry(owner.clone())
                    .or_insert_with(|| tasks.spawn(Arc::clone(&self).announce_to(owner)));
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    async fn announce_to(self: Arc<Self>, owner: AgentId) {
        loop {
            // Listening begins before the look, so that no news falls between.
            let news = self.news.notified();
            let Some(message) = self.announcer().next(&owner) else {
                if timeout(BEAT, news).await.is_err() {
                    self.announcer().beat(&owner);
                }
                continue;
            };
            match timeout(ANSWER, self.send(&owner, message)).await {
                Ok(Ok(verdict)) => {
                    self.admission.answered(&owner, verdict);
                    self.announcer().settle(&owner, verdict);
                    match verdict {
                        Verdict::WrongOwner { .. } | Verdict::Stranger => sleep(PAUSE).await,
                        Verdict::Fenced { incarnation } => {
                            tracing::error!(%owner, later = incarnation.0, "a later life of this agent speaks");
                            sleep(BEAT).await;
                        }
                        Verdict::Applied | Verdict::Old | Verdict::NeedDump => {}
                    }
                }
                Ok(Err(error)) => {
                    self.admission.away(&owner);
                    tracing::debug!(%owner, %error, "announce");
                    sleep(PAUSE).await;
                }
                Err(_) => {
                    self.admission.away(&owner);
                    tracing::debug!(%owner, "announce: no answer");
                }
            }
        }
    }

    async fn send(&self, owner: &AgentId, message: Message) -> Result<Verdict, Refusal> {
        let request = convert::to_announce(message);
        let response = if *owner == self.membership.me {
            self.announce(request)?
        } else {
            let entry = self.membership.entry(owner)?;
            let mut client = self.membership.channels.index(&entry.control)?;
            client.announce(request).await.map_err(Refusal::from)?.into_inner()
        };
        convert::from_verdict(&response)
    }
}
