//! When the index admits this agent: the owners know what it holds, and it knows what the holders of its slots hold.
//! A fresh agent that is asked, or loaded, before that causes recomputes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hypic_domain::id::{AgentId, Epoch};
use hypic_domain::topology::AgentRole;
use hypic_lookup::Verdict;

use super::Index;

/// Holders that have told nothing by then are given up: what they hold is built anew, should it be needed.
const LISTEN: Duration = Duration::from_secs(10);

/// What is known of the way into the index.
#[derive(Default)]
pub(super) struct Admission {
    /// When this agent was first named in a topology.
    named: OnceLock<Instant>,
    /// Set once: later changes of the fleet are the business of its newcomers.
    done: OnceLock<()>,
    owners: Mutex<HashMap<AgentId, Standing>>,
}

/// How an owner took the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Away,
    /// It goes by another topology.
    At(Epoch),
    /// It has heard a later life of this agent.
    Fences,
    Takes,
}

impl Admission {
    fn owners(&self) -> MutexGuard<'_, HashMap<AgentId, Standing>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn away(&self, owner: &AgentId) {
        self.owners().insert(owner.clone(), Standing::Away);
    }

    pub(super) fn answered(&self, owner: &AgentId, verdict: Verdict) {
        let standing = match verdict {
            Verdict::WrongOwner { epoch } => Standing::At(epoch),
            Verdict::Fenced { .. } => Standing::Fences,
            _ => Standing::Takes,
        };
        self.owners().insert(owner.clone(), standing);
    }
}

impl Index {
    /// Whether the index has admitted this agent, once in its life.
    ///
    /// # Errors
    /// What it waits for.
    pub fn admitted(&self) -> Result<(), String> {
        if self.admission.done.get().is_some() {
            return Ok(());
        }
        let topology = self.membership.topology();
        let Some(me) = topology.agent(&self.membership.me) else {
            return Err(format!("waits to be named in the topology (epoch {})", topology.epoch));
        };
        for owner in topology.of_role(AgentRole::Combine) {
            if self.announcer().is_admitted(&owner.id) {
                continue;
            }
            match self.admission.owners().get(&owner.id) {
                Some(Standing::Away) => {}
                Some(Standing::At(epoch)) => {
                    let ours = topology.epoch;
                    return Err(format!("waits for {}, which is at epoch {epoch} and not {ours}", owner.id));
                }
                Some(Standing::Fences) => {
                    let why = "knows a later life of it: does it run twice, or is its clock behind?";
                    return Err(format!("{} {why}", owner.id));
                }
                Some(Standing::Takes) | None => {
                    return Err(format!("waits for {} to take in what this agent holds", owner.id));
                }
            }
        }
        let named = *self.admission.named.get_or_init(Instant::now);
        if me.role == AgentRole::Combine && named.elapsed() < LISTEN {
            let shard = self.shard();
            if let Some(holder) = shard.untold().next() {
                return Err(format!("waits for {holder} to tell what it holds"));
            }
        }
        self.admission.done.get_or_init(|| ());
        Ok(())
    }

    /// The time of waiting for holders begins: this agent is in the topology and can be spoken to.
    pub fn begin_admission(&self) {
        self.admission.named.get_or_init(Instant::now);
    }
}
