use super::*;
use hypic_domain::topology::{AgentEntry, AgentRole};

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

fn alone() -> Shard {
    Shard::new("a".into(), &topology(1, &["a"], &["s", "t"]), 2, Limits::default())
}

fn key(n: u8) -> SegmentKey {
    SegmentKey([n; 32])
}

fn claim(n: u8, tier: Tier) -> Claim {
    Claim { key: key(n), tier, bytes: Bytes(100) }
}

fn sender(agent: &str, life: u64) -> Sender {
    Sender { agent: agent.into(), incarnation: Incarnation(life), epoch: Epoch(1) }
}

fn whole(sender: Sender, dump: u64, at: u64, claims: Vec<Claim>) -> Message {
    Message::Dump(DumpPage { sender, dump, at: Sequence(at), page: 0, last: true, claims })
}

fn say(sender: Sender, sequence: u64, changes: Vec<Change>) -> Message {
    Message::Announce(Announcement { sender, sequence: Sequence(sequence), changes })
}

fn holders(shard: &Shard, n: u8) -> Vec<(String, Tier)> {
    let located = shard.locate(&[key(n)], Instant::now()).unwrap();
    located[0].holders.iter().map(|holder| (holder.agent.0.clone(), holder.tier)).collect()
}

#[test]
fn a_stream_starts_with_a_dump_and_goes_on_in_order() {
    let mut shard = alone();
    let has = |n| Change::Has(claim(n, Tier::Host));
    assert_eq!(shard.take(&say(sender("s", 1), 1, vec![has(1)])), Verdict::NeedDump);
    assert_eq!(shard.take(&whole(sender("s", 1), 1, 0, vec![claim(2, Tier::Device)])), Verdict::Applied);
    assert_eq!(shard.take(&say(sender("s", 1), 1, vec![has(1)])), Verdict::Applied);
    assert_eq!(shard.take(&say(sender("s", 1), 1, vec![Change::Gone(key(2))])), Verdict::Old);
    assert_eq!(shard.take(&say(sender("s", 1), 3, vec![Change::Gone(key(2))])), Verdict::NeedDump);
    assert_eq!(holders(&shard, 1), [("s".into(), Tier::Host)]);
    assert_eq!(holders(&shard, 2), [("s".into(), Tier::Device)]);
    assert_eq!(shard.take(&say(sender("s", 1), 2, vec![Change::Gone(key(2)), has(3)])), Verdict::Applied);
    assert_eq!(holders(&shard, 2), []);
}

#[test]
fn the_old_view_stays_until_the_dump_is_whole() {
    let mut shard = alone();
    shard.take(&whole(sender("s", 1), 1, 0, vec![claim(1, Tier::Host)]));
    let page = |page, last, claims| {
        Message::Dump(DumpPage { sender: sender("s", 1), dump: 2, at: Sequence(9), page, last, claims })
    };
    assert_eq!(shard.take(&page(0, false, vec![claim(2, Tier::Host)])), Verdict::Applied);
    assert_eq!(shard.take(&page(0, false, vec![claim(2, Tier::Host)])), Verdict::Old);
    assert_eq!(shard.take(&page(2, true, vec![])), Verdict::NeedDump);
    assert_eq!(holders(&shard, 1), [("s".into(), Tier::Host)]);
    assert_eq!(holders(&shard, 2), []);
    assert_eq!(shard.take(&page(1, true, vec![claim(3, Tier::Host)])), Verdict::Applied);
    assert_eq!((holders(&shard, 1), holders(&shard, 2).len()), (vec![], 1));
    assert_eq!(shard.take(&say(sender("s", 1), 9, vec![Change::Gone(key(3))])), Verdict::Old);
    assert_eq!(shard.take(&say(sender("s", 1), 10, vec![Change::Gone(key(3))])), Verdict::Applied);
    assert_eq!(holders(&shard, 3), []);
}

#[test]
fn a_new_life_voids_the_claims_of_the_former_and_fences_it() {
    let mut shard = alone();
    shard.take(&whole(sender("s", 1), 7, 0, vec![claim(1, Tier::Host)]));
    shard.take(&whole(sender("t", 1), 1, 0, vec![claim(1, Tier::Device)]));
    assert_eq!(holders(&shard, 1), [("t".into(), Tier::Device), ("s".into(), Tier::Host)]);
    assert_eq!(shard.take(&say(sender("s", 2), 1, vec![])), Verdict::NeedDump);
    assert_eq!(holders(&shard, 1), [("t".into(), Tier::Device)]);
    let fenced = Verdict::Fenced { incarnation: Incarnation(2) };
    assert_eq!(shard.take(&whole(sender("s", 1), 8, 0, vec![claim(1, Tier::Host)])), fenced);
    assert_eq!(shard.take(&whole(sender("s", 2), 1, 0, vec![claim(1, Tier::Disk)])), Verdict::Applied);
    assert_eq!(holders(&shard, 1), [("t".into(), Tier::Device), ("s".into(), Tier::Disk)]);
}

#[test]
fn strangers_and_other_epochs_are_refused_with_the_epoch() {
    let mut shard = alone();
    assert_eq!(shard.take(&whole(sender("x", 1), 1, 0, vec![])), Verdict::Stranger);
    let old = Sender { epoch: Epoch(0), ..sender("s", 1) };
    assert_eq!(shard.take(&whole(old, 1, 0, vec![])), Verdict::WrongOwner { epoch: Epoch(1) });
    let wrong = Error::AdoptTopology { offered: Epoch(0), epoch: Epoch(1) };
    assert_eq!(shard.adopt(&topology(0, &["a"], &[])), Err(wrong));
}

#[test]
fn asking_a_non_owner_says_so_with_the_epoch() {
    let names = ["a", "b", "c", "d"];
    let shard = Shard::new("a".into(), &topology(4, &names, &[]), 2, Limits::default());
    let keys: Vec<SegmentKey> = (0..=255).map(key).collect();
    let (ours, others): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| shard.ring().owns(&"a".into(), key));
    assert_eq!(shard.locate(&ours, Instant::now()).unwrap().len(), ours.len());
    let wrong = Error::WrongOwner { slot: others[0].slot(), epoch: Epoch(4) };
    assert_eq!(shard.locate(&others, Instant::now()), Err(wrong));
}

#[test]
fn one_agent_builds_until_it_publishes_expires_fails_or_goes() {
    let mut shard = alone();
    let (s, t) = (AgentId::from("s"), AgentId::from("t"));
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let building = |agent: &AgentId| Granted::Building { agent: agent.clone() };
    let ask = |shard: &mut Shard, agent, now| shard.grant(key(1), agent, now, second).unwrap();

    assert_eq!(ask(&mut shard, &s, start), Granted::Granted);
    assert_eq!(ask(&mut shard, &t, start), building(&s));
    assert_eq!(shard.locate(&[key(1)], start).unwrap()[0].building, Some(s.clone()));
    // Expired.
    assert_eq!(shard.locate(&[key(1)], start + second).unwrap()[0].building, None);
    assert_eq!((shard.counts(start).grants, shard.counts(start + second).grants), (1, 0));
    assert_eq!(ask(&mut shard, &t, start + second), Granted::Granted);
    // The late one cannot end what is no longer its own.
    shard.release(&key(1), &s);
    assert_eq!(ask(&mut shard, &s, start + second), building(&t));
    // Failed.
    shard.release(&key(1), &t);
    assert_eq!(ask(&mut shard, &s, start + second), Granted::Granted);
    // Gone.
    shard.forget(&s);
    assert_eq!(ask(&mut shard, &t, start + second), Granted::Granted);
    // Published.
    shard.take(&whole(sender("t", 1), 1, 0, vec![claim(1, Tier::Device)]));
    assert_eq!(shard.counts(Instant::now()).grants, 0);
}

#[test]
fn memory_is_bounded_and_what_was_refused_is_counted() {
    let limits = Limits { claims: 3, grants: 2 };
    let mut shard = Shard::new("a".into(), &topology(1, &["a"], &["s"]), 2, limits);
    let claims = (1..=5).map(|n| claim(n, Tier::Host)).collect();
    assert_eq!(shard.take(&whole(sender("s", 1), 1, 0, claims)), Verdict::Applied);
    assert_eq!((shard.counts(Instant::now()).claims, shard.counts(Instant::now()).refused), (3, 2));
    let more =
        say(sender("s", 1), 1, vec![Change::Has(claim(6, Tier::Host)), Change::Has(claim(1, Tier::Disk))]);
    assert_eq!(shard.take(&more), Verdict::Applied);
    assert_eq!((shard.counts(Instant::now()).claims, shard.counts(Instant::now()).refused), (3, 3));
    let now = Instant::now();
    for (n, ttl) in [(11, 3), (12, 1), (13, 2)] {
        shard.grant(key(n), &"s".into(), now, Duration::from_secs(ttl)).unwrap();
    }
    let building: Vec<bool> = shard
        .locate(&[key(11), key(12), key(13)], now)
        .unwrap()
        .iter()
        .map(|located| located.building.is_some())
        .collect();
    assert_eq!(building, [true, false, true]);
}

#[test]
fn a_vanished_agent_is_forgotten_and_may_come_back() {
    let mut shard = alone();
    shard.take(&whole(sender("s", 1), 1, 4, vec![claim(1, Tier::Host)]));
    shard.forget(&"s".into());
    assert_eq!(holders(&shard, 1), []);
    assert_eq!(shard.take(&say(sender("s", 1), 5, vec![])), Verdict::NeedDump);
    shard.take(&whole(sender("s", 1), 2, 5, vec![claim(1, Tier::Host)]));
    assert_eq!(holders(&shard, 1), [("s".into(), Tier::Host)]);
    shard.adopt(&topology(1, &["a"], &["t"])).unwrap();
    assert_eq!(holders(&shard, 1), []);
    assert_eq!(shard.take(&say(sender("s", 1), 6, vec![])), Verdict::Stranger);
}
