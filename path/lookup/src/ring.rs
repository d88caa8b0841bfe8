//! Which agents own which slot: rendezvous hashing over the combine agents.

use hypic_domain::id::{AgentId, Epoch};
use hypic_domain::key::SegmentKey;
use hypic_domain::topology::{AgentRole, Topology};

/// Slots of the index.
pub const SLOTS: u16 = 4096;

/// Owners of every slot under one topology. Scatter workers own nothing, so that scaling them to zero moves
/// no slot. When one of `n` combine agents goes, only the slots that it owned get another owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    epoch: Epoch,
    agents: Vec<AgentId>,
    replicas: usize,
    /// Indices into `agents`, best first, `[slot, replica]`.
    owners: Vec<u32>,
}

impl Ring {
    /// The ring of a topology with `replicas` owners per slot, or fewer where there are fewer combine agents.
    pub fn new(topology: &Topology, replicas: usize) -> Self {
        let mut agents: Vec<AgentId> =
            topology.of_role(AgentRole::Combine).map(|entry| entry.id.clone()).collect();
        agents.sort();
        agents.dedup();
        let replicas = replicas.min(agents.len());
        let seeds: Vec<u64> = agents.iter().map(seed).collect();
        let mut owners = Vec::with_capacity(usize::from(SLOTS) * replicas);
        let mut ranked: Vec<(u64, u32)> = Vec::with_capacity(agents.len());
        for slot in 0..SLOTS {
            ranked.clear();
            ranked
                .extend(seeds.iter().zip(0..).map(|(seed, index)| (mix(seed ^ mix(u64::from(slot))), index)));
            if replicas > 0 && replicas < ranked.len() {
                ranked.select_nth_unstable_by(replicas - 1, |a, b| b.cmp(a));
            }
            ranked.truncate(replicas);
            ranked.sort_unstable_by(|a, b| b.cmp(a));
            owners.extend(ranked.iter().map(|(_, index)| *index));
        }
        Self { epoch: topology.epoch, agents, replicas, owners }
    }

    /// Epoch of the topology.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The combine agents, by name.
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }

    /// Owners of a slot, best first. Builds are granted by the first that lives.
    pub fn owners(&self, slot: u16) -> impl Iterator<Item = &AgentId> {
        let first = usize::from(slot) * self.replicas;
        self.owners.get(first..first + self.replicas).into_iter().flatten().map(|&i| &self.agents[i as usize])
    }

    /// Whether `agent` owns `slot`.
    pub fn owns_slot(&self, agent: &AgentId, slot: u16) -> bool {
        self.owners(slot).any(|owner| owner == agent)
    }

    /// Whether `agent` owns the slot of `key`.
    pub fn owns(&self, agent: &AgentId, key: &SegmentKey) -> bool {
        self.owns_slot(agent, key.slot())
    }

    /// The slots that `agent` owns.
    pub fn slots_of<'a>(&'a self, agent: &'a AgentId) -> impl Iterator<Item = u16> + 'a {
        (0..SLOTS).filter(move |slot| self.owns_slot(agent, *slot))
    }

    /// Whether `agent` owns a slot here that it did not own in `before`.
    pub fn gained(&self, before: &Self, agent: &AgentId) -> bool {
        self.slots_of(agent).any(|slot| !before.owns_slot(agent, slot))
    }

    /// Groups `keys` for one batched question per owner: each key goes to its first owner that `lives`.
    /// Holds places in `keys`; keys without a living owner are left out, and are cold.
    pub fn batches(
        &self,
        keys: &[SegmentKey],
        lives: impl Fn(&AgentId) -> bool,
    ) -> Vec<(&AgentId, Vec<usize>)> {
        let mut batches: Vec<(&AgentId, Vec<usize>)> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let Some(owner) = self.owners(key.slot()).find(|owner| lives(owner)) else { continue };
            match batches.iter_mut().find(|(to, _)| *to == owner) {
                Some((_, places)) => places.push(place),
                None => batches.push((owner, vec![place])),
            }
        }
        batches
    }
}

fn seed(agent: &AgentId) -> u64 {
    let digest = blake3::derive_key("hypic 2026 slot owner v1", agent.as_str().as_bytes());
    let mut word = [0; 8];
    word.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(word)
}

/// The finaliser of splitmix64: every input bit moves every output bit. Part of the contract between
/// agents: all must compute the same ring.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypic_domain::topology::AgentEntry;

    fn topology(epoch: u64, combine: &[&str], scatter: &[&str]) -> Topology {
        let entry = |id: &&str, role| AgentEntry {
            id: AgentId::from(*id),
            role,
            control: "[::1]:1".into(),
            bulk: "[::1]:2".into(),
        };
        let combine = combine.iter().map(|id| entry(id, AgentRole::Combine));
        let scatter = scatter.iter().map(|id| entry(id, AgentRole::Scatter));
        Topology { epoch: Epoch(epoch), revision: 0, agents: combine.chain(scatter).collect() }
    }

    #[test]
    fn every_slot_has_two_owners_and_shares_are_even() {
        let ring = Ring::new(&topology(1, &["a", "b", "c", "d"], &["s"]), 2);
        for slot in 0..SLOTS {
            let owners: Vec<_> = ring.owners(slot).collect();
            assert_eq!(owners.len(), 2);
            assert_ne!(owners[0], owners[1]);
        }
        for agent in ring.agents() {
            let share = ring.slots_of(agent).count();
            assert!((1900..2200).contains(&share), "{agent} owns {share}");
        }
        assert_eq!(ring.slots_of(&AgentId::from("s")).count(), 0);
    }

    #[test]
    fn order_of_the_file_and_scatter_workers_move_no_slot() {
        let one = Ring::new(&topology(1, &["a", "b", "c"], &[]), 2);
        let two = Ring::new(&topology(1, &["c", "a", "b"], &["s", "t"]), 2);
        assert_eq!(one, two);
    }

    #[test]
    fn losing_an_agent_moves_only_its_slots() {
        let before = Ring::new(&topology(1, &["a", "b", "c", "d"], &[]), 2);
        let after = Ring::new(&topology(2, &["a", "b", "c"], &[]), 2);
        let gone = AgentId::from("d");
        for slot in 0..SLOTS {
            let left: Vec<_> = before.owners(slot).filter(|owner| **owner != gone).collect();
            assert_eq!(after.owners(slot).take(left.len()).collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn fewer_agents_than_replicas_is_no_error() {
        assert_eq!(Ring::new(&topology(1, &["a"], &[]), 2).owners(7).count(), 1);
        assert_eq!(Ring::new(&topology(1, &[], &["s"]), 2).owners(7).count(), 0);
    }

    #[test]
    fn the_owners_of_a_few_slots_stay_what_they_are() {
        // A golden: agents of two releases must agree on owners while a rollout is under way.
        let ring = Ring::new(&topology(1, &["agent-0", "agent-1", "agent-2"], &[]), 2);
        let owners: String = [0, 1, 2, 1000, 4095]
            .into_iter()
            .map(|slot| ring.owners(slot).map(|a| &a.0[6..]).collect::<String>() + " ")
            .collect();
        assert_eq!(owners, "21 02 21 01 10 ");
    }

    #[test]
    fn keys_are_asked_in_one_batch_per_living_owner() {
        let ring = Ring::new(&topology(1, &["a", "b", "c"], &[]), 2);
        let keys: Vec<SegmentKey> = (0..64u8).map(|i| SegmentKey([i.wrapping_mul(37); 32])).collect();
        let gone = AgentId::from("b");
        let batches = ring.batches(&keys, |agent| *agent != gone);
        assert!(batches.len() <= 2);
        assert_eq!(batches.iter().map(|(_, places)| places.len()).sum::<usize>(), keys.len());
        for (owner, places) in batches {
            assert!(places.iter().all(|&place| ring.owns(owner, &keys[place])));
        }
    }
}
