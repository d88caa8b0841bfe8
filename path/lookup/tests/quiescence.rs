//! Whatever is lost, doubled, late, restarted or moved: when all is quiet, the sharded index knows what the
//! flat one knows; and before that, an answer names nobody who never had the tuple.

// Helpers outside of a test function may unwrap as well.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use hypic_domain::id::{AgentId, Epoch, Incarnation};
use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_domain::unit::Bytes;
use hypic_lookup::naive::Naive;
use hypic_lookup::{Announcer, Change, Claim, Limits, Message, Ring, SLOTS, Shard, Verdict};
use proptest::prelude::*;

const COMBINE: usize = 4;
const AGENTS: usize = 6;
const KEYS: u8 = 24;
const REPLICAS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// The store of a holder takes a tuple, or drops it (no tier).
    Store { holder: usize, key: u8, tier: Option<Tier> },
    /// A holder sends to an owner; the network may lose the message or the answer, and keeps a copy.
    Send { holder: usize, owner: usize, lost: bool, answer_lost: bool },
    /// A copy arrives late.
    Late { copy: usize },
    /// A holder restarts and finds a part of what it had.
    RestartHolder { holder: usize, keeps: u32 },
    /// A slot owner restarts empty.
    RestartOwner { owner: usize },
    /// A new set of combine agents; nobody knows it yet.
    Change { combine: u8 },
    /// A holder's announcer hears of the last topology.
    HolderAdopts { holder: usize },
    /// A slot owner hears of it.
    OwnerAdopts { owner: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let tier =
        prop_oneof![Just(None), Just(Some(Tier::Device)), Just(Some(Tier::Host)), Just(Some(Tier::Disk))];
    prop_oneof![
        8 => (0..AGENTS, 0..KEYS, tier).prop_map(|(holder, key, tier)| Step::Store { holder, key, tier }),
        12 => (0..AGENTS, 0..COMBINE, prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(holder, owner, lost, answer_lost)| Step::Send { holder, owner, lost, answer_lost }),
        5 => any::<usize>().prop_map(|copy| Step::Late { copy }),
        1 => (0..AGENTS, any::<u32>()).prop_map(|(holder, keeps)| Step::RestartHolder { holder, keeps }),
        1 => (0..COMBINE).prop_map(|owner| Step::RestartOwner { owner }),
        1 => (1..1u8 << COMBINE).prop_map(|combine| Step::Change { combine }),
        2 => (0..AGENTS).prop_map(|holder| Step::HolderAdopts { holder }),
        2 => (0..COMBINE).prop_map(|owner| Step::OwnerAdopts { owner }),
    ]
}

fn name(agent: usize) -> AgentId {
    AgentId(format!("agent-{agent}"))
}

fn key(n: u8) -> SegmentKey {
    SegmentKey(*blake3::hash(&[n]).as_bytes())
}

/// The agents of `combine` own slots; every other agent is a scatter worker.
fn topology(epoch: u64, combine: u8) -> Topology {
    let agents = (0..AGENTS).map(|agent| AgentEntry {
        id: name(agent),
        role: if combine >> agent & 1 == 1 { AgentRole::Combine } else { AgentRole::Scatter },
        control: format!("[::1]:{agent}"),
        bulk: format!("[::1]:{agent}"),
    });
    Topology { epoch: Epoch(epoch), revision: 0, agents: agents.collect() }
}

struct World {
    topology: Topology,
    announcers: Vec<Announcer>,
    lives: Vec<u64>,
    stores: Vec<BTreeMap<u8, Tier>>,
    owners: Vec<Shard>,
    copies: Vec<(usize, Message)>,
    truth: Naive,
    ever: BTreeSet<(usize, u64, u8)>,
}

impl World {
    fn new() -> Self {
        let topology = topology(1, 0b0111);
        let ring = Arc::new(Ring::new(&topology, REPLICAS));
        let announcer = |agent| Announcer::new(name(agent), Incarnation(1), Arc::clone(&ring)).paged_by(3);
        Self {
            announcers: (0..AGENTS).map(announcer).collect(),
            lives: vec![1; AGENTS],
            stores: vec![BTreeMap::new(); AGENTS],
            owners: (0..COMBINE).map(|owner| shard(owner, &topology)).collect(),
            topology,
            copies: Vec::new(),
            truth: Naive::default(),
            ever: BTreeSet::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Store { holder, key, tier } => self.store(holder, key, tier),
            Step::Send { holder, owner, lost, answer_lost } => {
                let Some(message) = self.announcers[holder].next(&name(owner)) else { return };
                self.copies.push((owner, message.clone()));
                if lost {
                    return;
                }
                let verdict = self.owners[owner].take(&message);
                if !answer_lost {
                    self.announcers[holder].settle(&name(owner), verdict);
                }
            }
            Step::Late { copy } if !self.copies.is_empty() => {
                let (owner, message) = &self.copies[copy % self.copies.len()];
                self.owners[*owner].take(message);
            }
            Step::Late { .. } => {}
            Step::RestartHolder { holder, keeps } => {
                self.lives[holder] += 1;
                let life = Incarnation(self.lives[holder]);
                let ring = Arc::new(Ring::new(&self.topology, REPLICAS));
                self.announcers[holder] = Announcer::new(name(holder), life, ring).paged_by(3);
                self.truth.forget(&name(holder));
                for (key, tier) in std::mem::take(&mut self.stores[holder]) {
                    if keeps >> key & 1 == 1 {
                        self.store(holder, key, Some(tier));
                    }
                }
            }
            Step::RestartOwner { owner } => self.owners[owner] = shard(owner, &self.topology),
            Step::Change { combine } => self.topology = topology(self.topology.epoch.0 + 1, combine),
            Step::HolderAdopts { holder } => self.holder_adopts(holder),
            Step::OwnerAdopts { owner } => self.owners[owner].adopt(&self.topology).unwrap(),
        }
    }

    fn store(&mut self, holder: usize, n: u8, tier: Option<Tier>) {
        let change = match tier {
            Some(tier) => Change::Has(Claim { key: key(n), tier, bytes: Bytes(u64::from(n)) }),
            None => Change::Gone(key(n)),
        };
        match tier {
            Some(tier) => self.stores[holder].insert(n, tier),
            None => self.stores[holder].remove(&n),
        };
        self.ever.insert((holder, self.lives[holder], n));
        self.announcers[holder].record(change);
        self.truth.apply(&name(holder), Incarnation(self.lives[holder]), change);
    }

    fn holder_adopts(&mut self, holder: usize) {
        let ring = Arc::new(Ring::new(&self.topology, REPLICAS));
        self.announcers[holder].adopt(ring).unwrap();
    }

    /// Late copies arrive, everybody hears of the last topology, and all that is to be said is said.
    fn settle_down(&mut self) {
        for (owner, message) in std::mem::take(&mut self.copies).iter().rev() {
            self.owners[*owner].take(message);
        }
        (0..COMBINE).for_each(|owner| self.owners[owner].adopt(&self.topology).unwrap());
        for holder in 0..AGENTS {
            self.holder_adopts(holder);
            for owner in 0..COMBINE {
                let (to, announcer) = (name(owner), &mut self.announcers[holder]);
                announcer.beat(&to);
                let mut messages = 0;
                while announcer.waiting().any(|waiting| *waiting == to) {
                    let message = announcer.next(&to).expect("waiting means there is a message");
                    let verdict = self.owners[owner].take(&message);
                    assert!(
                        matches!(verdict, Verdict::Applied | Verdict::Old | Verdict::NeedDump),
                        "{verdict:?}"
                    );
                    announcer.settle(&to, verdict);
                    messages += 1;
                    assert!(messages < 100, "{holder} never finishes with {owner}");
                }
            }
        }
    }

    fn nobody_is_named_who_never_had_it(&self) {
        for shard in &self.owners {
            for n in 0..KEYS {
                let Ok(located) = shard.locate(&[key(n)], Instant::now()) else { continue };
                for holder in &located[0].holders {
                    let agent = holder.agent.as_str().trim_start_matches("agent-").parse().unwrap();
                    let known = self.ever.contains(&(agent, holder.incarnation.0, n));
                    assert!(known, "{holder:?} never had {n}");
                }
            }
        }
    }

    fn every_owner_knows_the_truth(&self) {
        let ring = Ring::new(&self.topology, REPLICAS);
        for n in 0..KEYS {
            let mut asked = 0;
            for (owner, shard) in self.owners.iter().enumerate() {
                let answer = shard.locate(&[key(n)], Instant::now());
                if ring.owns(&name(owner), &key(n)) {
                    assert_eq!(answer.unwrap()[0].holders, self.truth.locate(&key(n)), "key {n} at {owner}");
                    asked += 1;
                } else {
                    assert!(answer.is_err());
                }
            }
            assert_eq!(asked, REPLICAS.min(ring.agents().len()));
        }
        for (owner, shard) in self.owners.iter().enumerate() {
            for holder in 0..AGENTS {
                let digests = shard.digests(&name(holder));
                for slot in (0..SLOTS).filter(|slot| ring.owns_slot(&name(owner), *slot)) {
                    let theirs = self.announcers[holder].digest(slot);
                    assert_eq!(digests.get(&slot).copied().unwrap_or(0), theirs);
                }
            }
        }
    }
}

fn shard(owner: usize, topology: &Topology) -> Shard {
    Shard::new(name(owner), topology, REPLICAS, Limits::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn after_any_history_the_shards_agree_with_the_flat_map(steps in prop::collection::vec(step(), 1..160)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.nobody_is_named_who_never_had_it();
        }
        world.settle_down();
        world.nobody_is_named_who_never_had_it();
        world.every_owner_knows_the_truth();
    }
}

/// Half a million entries of one holder, forced to dump again: pages stay small, and the old view answers
/// until the last page is there.
#[test]
fn a_large_dump_is_paged_and_the_old_view_answers_until_it_is_whole() {
    const ENTRIES: u32 = 500_000;
    let topology = topology(1, 0b0001);
    let ring = Arc::new(Ring::new(&topology, REPLICAS));
    let mut shard = shard(0, &topology);
    let mut announcer = Announcer::new(name(5), Incarnation(1), ring);
    let key = |n: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        SegmentKey(bytes)
    };
    for n in 0..ENTRIES {
        announcer.record(Change::Has(Claim { key: key(n), tier: Tier::Host, bytes: Bytes(1) }));
    }
    let to = name(0);
    for round in 0..2 {
        if round == 1 {
            announcer.settle(&to, Verdict::NeedDump);
        }
        let mut pages = 0;
        while announcer.waiting().next().is_some() {
            let message = announcer.next(&to).unwrap();
            let Message::Dump(page) = &message else { panic!("nothing changed since") };
            assert!(page.claims.len() <= hypic_lookup::event::PAGE);
            assert_eq!(shard.counts(Instant::now()).claims, if round == 0 { 0 } else { ENTRIES as usize });
            let verdict = shard.take(&message);
            announcer.settle(&to, verdict);
            pages += 1;
        }
        assert_eq!(pages, ENTRIES.div_ceil(hypic_lookup::event::PAGE as u32));
    }
    let keys: Vec<SegmentKey> = (0..10_000).map(key).collect();
    let located = shard.locate(&keys, Instant::now()).unwrap();
    assert!(located.iter().all(|located| located.holders.len() == 1));
}
