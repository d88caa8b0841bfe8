//! The holder's side: what must be told to which slot owner.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use hypic_domain::id::{AgentId, Epoch, Incarnation, Sequence};
use hypic_domain::key::SegmentKey;

use crate::Error;
use crate::event::{Announcement, Change, Claim, DumpPage, Message, PAGE, Sender, Verdict, set_digest};
use crate::ring::Ring;

/// Unsent changes of one stream above which a dump is cheaper than the changes.
const DIRTY_LIMIT: usize = 16 * PAGE;

/// Turns a holder's store events into one numbered stream per slot owner, and can dump to any of them.
///
/// The driver runs per owner: `next` → send → `settle`, and waits a little when the answer was
/// [`Verdict::WrongOwner`] or [`Verdict::Stranger`], or when there was none. Now and then it calls [`beat`]:
/// an owner that lost its memory notices only when spoken to.
///
/// [`beat`]: Announcer::beat
#[derive(Debug)]
pub struct Announcer {
    agent: AgentId,
    incarnation: Incarnation,
    ring: Arc<Ring>,
    /// All that this agent has, slot by slot, so that a dump can go on where its last page ended.
    held: BTreeMap<(u16, SegmentKey), Claim>,
    streams: BTreeMap<AgentId, Stream>,
    dumps: u64,
    page: usize,
    /// It announces nothing of what it holds, and takes back what it announced.
    withdrawn: bool,
}

#[derive(Debug, Default)]
struct Stream {
    /// A page was sent: the owner may know something.
    told: bool,
    /// The last number used. A number is never used twice, answered or not: a late copy of the first
    /// message would pass for the second.
    sequence: Sequence,
    /// Keys changed since the last announcement; what to say of them is looked up when it is sent.
    dirty: BTreeSet<SegmentKey>,
    beat: bool,
    dump: Dump,
    /// Sent and not yet answered.
    in_flight: Option<Body>,
}

#[derive(Debug, Default)]
enum Dump {
    #[default]
    Needed,
    Running(Cursor),
    Done,
}

/// Where a running dump goes on.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    number: u64,
    page: u32,
    after: Option<(u16, SegmentKey)>,
}

/// A message without its sender: the epoch is filled in when it is sent, again and again if need be.
#[derive(Clone, Debug)]
enum Body {
    Changes(Vec<Change>),
    Page { cursor: Cursor, last: bool, claims: Vec<Claim> },
}

impl Announcer {
    /// An announcer that holds nothing yet. What a restarted agent finds on its drive goes through
    /// [`record`](Self::record) like everything else.
    pub fn new(agent: AgentId, incarnation: Incarnation, ring: Arc<Ring>) -> Self {
        let streams = ring.agents().iter().map(|owner| (owner.clone(), Stream::default())).collect();
        let held = BTreeMap::new();
        Self { agent, incarnation, ring, held, streams, dumps: 0, page: PAGE, withdrawn: false }
    }

    /// Puts at most `claims` (at least one) into a page or an announcement, instead of [`PAGE`].
    #[must_use]
    pub fn paged_by(mut self, claims: usize) -> Self {
        self.page = claims.max(1);
        self
    }

    /// Epoch of the ring in use.
    pub fn epoch(&self) -> Epoch {
        self.ring.epoch()
    }

    /// Takes back all that was announced, with an empty dump to every owner that may know something, and announces
    /// nothing more: the agent is about to go. What it holds is still recorded.
    pub fn withdraw(&mut self) {
        if std::mem::replace(&mut self.withdrawn, true) {
            return;
        }
        for stream in self.streams.values_mut() {
            if stream.told { stream.start_over() } else { stream.fall_silent() }
        }
    }

    /// Announces again what the agent holds: it stays after all.
    pub fn restore(&mut self) {
        if std::mem::replace(&mut self.withdrawn, false) {
            self.streams.values_mut().for_each(Stream::start_over);
        }
    }

    /// Whether `owner` has taken in a whole dump and been told of every slot that it owns since.
    pub fn is_admitted(&self, owner: &AgentId) -> bool {
        self.streams.get(owner).is_some_and(|stream| matches!(stream.dump, Dump::Done))
    }

    /// Slot owners to whom there is something to say, or from whom an answer is due.
    pub fn waiting(&self) -> impl Iterator<Item = &AgentId> {
        self.streams.iter().filter(|(_, stream)| !stream.is_quiet()).map(|(owner, _)| owner)
    }

    /// A change in the store.
    pub fn record(&mut self, change: Change) {
        let key = change.key();
        let place = (key.slot(), key);
        match change {
            Change::Has(claim) => self.held.insert(place, claim),
            Change::Gone(_) => self.held.remove(&place),
        };
        if self.withdrawn {
            return;
        }
        for owner in self.ring.owners(key.slot()) {
            let Some(stream) = self.streams.get_mut(owner) else { continue };
            // A dump that has not begun will read the present state anyway.
            if matches!(stream.dump, Dump::Needed) {
                continue;
            }
            stream.dirty.insert(key);
            if stream.dirty.len() > DIRTY_LIMIT {
                stream.start_over();
            }
        }
    }

    /// Asks for an announcement to `owner` even if nothing changed.
    pub fn beat(&mut self, owner: &AgentId) {
        if let Some(stream) = self.streams.get_mut(owner).filter(|_| !self.withdrawn) {
            stream.beat = true;
        }
    }

    /// Goes by a new ring. Owners that are new or own more than before get a dump.
    ///
    /// The owner compares rings as well: either may have skipped a topology that the other went by, and
    /// only together they notice every slot that was away for a while.
    ///
    /// # Errors
    /// [`Error::AdoptTopology`] if the ring is older than the one in use.
    pub fn adopt(&mut self, ring: Arc<Ring>) -> Result<(), Error> {
        if ring.epoch() < self.ring.epoch() {
            return Err(Error::AdoptTopology { offered: ring.epoch(), epoch: self.ring.epoch() });
        }
        // A stream that ends may start again at 1 later: messages of the first are of an older epoch then.
        self.streams.retain(|owner, _| ring.agents().contains(owner));
        for owner in ring.agents() {
            let stream = self.streams.entry(owner.clone()).or_default();
            if self.withdrawn {
                if !stream.told {
                    stream.fall_silent();
                }
                continue;
            }
            stream.beat = true;
            if ring.gained(&self.ring, owner) {
                stream.start_over();
            }
        }
        self.ring = ring;
        Ok(())
    }

    /// The message to send to `owner` now, the same until it is settled; `None` if there is nothing to say.
    pub fn next(&mut self, owner: &AgentId) -> Option<Message> {
        let stream = self.streams.get_mut(owner)?;
        if stream.in_flight.is_none() {
            if matches!(stream.dump, Dump::Needed) {
                self.dumps += 1;
                stream.dump = Dump::Running(Cursor { number: self.dumps, page: 0, after: None });
                stream.dirty.clear();
            }
            let nothing = BTreeMap::new();
            let held = if self.withdrawn { &nothing } else { &self.held };
            stream.in_flight = match stream.dump {
                Dump::Running(cursor) => {
                    stream.told = true;
                    Some(page(held, &self.ring, owner, cursor, self.page))
                }
                _ => stream.changes(&self.held, self.page),
            };
        }
        let sender =
            Sender { agent: self.agent.clone(), incarnation: self.incarnation, epoch: self.ring.epoch() };
        Some(match stream.in_flight.clone()? {
            Body::Changes(changes) => {
                Message::Announce(Announcement { sender, sequence: stream.sequence, changes })
            }
            Body::Page { cursor, last, claims } => Message::Dump(DumpPage {
                sender,
                dump: cursor.number,
                at: stream.sequence,
                page: cursor.page,
                last,
                claims,
            }),
        })
    }

    /// The answer of `owner` to the message that [`next`](Self::next) gave last.
    ///
    /// After [`Verdict::Fenced`] there is nothing left to do: another life of this agent speaks.
    pub fn settle(&mut self, owner: &AgentId, verdict: Verdict) {
        let (epoch, withdrawn) = (self.ring.epoch(), self.withdrawn);
        let Some(stream) = self.streams.get_mut(owner) else { return };
        match verdict {
            // An owner that is ahead, or does not know the agent any more, has forgotten what it was told.
            Verdict::WrongOwner { epoch: ahead } if withdrawn && ahead > epoch => stream.fall_silent(),
            Verdict::Stranger | Verdict::Fenced { .. } if withdrawn => stream.fall_silent(),
            // Old: an earlier copy was applied and its answer was lost.
            Verdict::Applied | Verdict::Old => {
                if let Some(Body::Page { cursor, last, claims }) = stream.in_flight.take() {
                    stream.dump = if last {
                        Dump::Done
                    } else {
                        let after = claims.last().map(|claim| (claim.key.slot(), claim.key)).or(cursor.after);
                        Dump::Running(Cursor { page: cursor.page + 1, after, ..cursor })
                    };
                }
            }
            Verdict::NeedDump => stream.start_over(),
            Verdict::WrongOwner { .. } | Verdict::Stranger | Verdict::Fenced { .. } => {}
        }
    }

    /// Digest of what this agent has in one slot, to compare with [`Shard::digests`](crate::Shard::digests).
    pub fn digest(&self, slot: u16) -> u64 {
        let first = (slot, SegmentKey([0; 32]));
        let last = (slot, SegmentKey([0xff; 32]));
        set_digest(self.held.range(first..=last).map(|((_, key), _)| key))
    }
}

impl Stream {
    fn is_quiet(&self) -> bool {
        self.in_flight.is_none() && self.dirty.is_empty() && !self.beat && matches!(self.dump, Dump::Done)
    }

    fn start_over(&mut self) {
        self.in_flight = None;
        self.dump = Dump::Needed;
        self.dirty.clear();
    }

    /// There is nothing to say, and nothing that the owner would have to forget.
    fn fall_silent(&mut self) {
        *self = Self { sequence: self.sequence, dump: Dump::Done, ..Self::default() };
    }

    fn changes(&mut self, held: &BTreeMap<(u16, SegmentKey), Claim>, limit: usize) -> Option<Body> {
        if self.dirty.is_empty() && !self.beat {
            return None;
        }
        self.beat = false;
        self.sequence.0 += 1;
        let mut changes = Vec::with_capacity(self.dirty.len().min(limit));
        while let Some(key) = (changes.len() < limit).then(|| self.dirty.pop_first()).flatten() {
            let claim = held.get(&(key.slot(), key));
            changes.push(claim.map_or(Change::Gone(key), |claim| Change::Has(*claim)));
        }
        Some(Body::Changes(changes))
    }
}

/// The next page of a dump, read from the present state. Changes behind the cursor are dirty and follow
/// when the dump is whole, so the pages need not be of one moment.
fn page(
    held: &BTreeMap<(u16, SegmentKey), Claim>,
    ring: &Ring,
    owner: &AgentId,
    cursor: Cursor,
    limit: usize,
) -> Body {
    let from = cursor.after.map_or(Unbounded, Excluded);
    let mut left = held
        .range((from, Unbounded))
        .filter(|((slot, _), _)| ring.owns_slot(owner, *slot))
        .map(|(_, claim)| *claim);
    let claims: Vec<Claim> = left.by_ref().take(limit).collect();
    let last = left.next().is_none();
    Body::Page { cursor, last, claims }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hypic_domain::tier::Tier;
    use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
    use hypic_domain::unit::Bytes;

    use super::*;
    use crate::shard::{Limits, Shard};

    fn topology(epoch: u64, agents: &[(&str, AgentRole)]) -> Topology {
        let entry = |(id, role): &(&str, AgentRole)| AgentEntry {
            id: AgentId::from(*id),
            role: *role,
            control: "[::1]:1".into(),
            bulk: "[::1]:2".into(),
        };
        Topology { epoch: Epoch(epoch), revision: 0, agents: agents.iter().map(entry).collect() }
    }

    fn has(n: u8) -> Change {
        Change::Has(Claim { key: SegmentKey([n; 32]), tier: Tier::Host, bytes: Bytes(1) })
    }

    /// Says all that there is to say.
    fn tell(announcer: &mut Announcer, owner: &AgentId, shard: &mut Shard) {
        while let Some(message) = announcer.next(owner) {
            announcer.settle(owner, shard.take(&message));
        }
    }

    fn held(shard: &Shard, n: u8) -> usize {
        shard.locate(&[SegmentKey([n; 32])], Instant::now()).unwrap()[0].holders.len()
    }

    #[test]
    fn who_withdraws_takes_back_everything_and_who_stays_after_all_tells_it_again() {
        let (owner, fleet) =
            (AgentId::from("a"), topology(1, &[("a", AgentRole::Combine), ("s", AgentRole::Scatter)]));
        let mut shard = Shard::new(owner.clone(), &fleet, 2, Limits::default());
        let mut announcer = Announcer::new("s".into(), Incarnation(1), Arc::clone(shard.ring()));
        assert_eq!(shard.untold().count(), 1);
        announcer.record(has(1));
        tell(&mut announcer, &owner, &mut shard);
        assert!(announcer.is_admitted(&owner) && shard.untold().next().is_none());
        announcer.record(has(2));
        announcer.withdraw();
        announcer.record(has(3));
        announcer.beat(&owner);
        tell(&mut announcer, &owner, &mut shard);
        assert_eq!((held(&shard, 1), held(&shard, 2), held(&shard, 3)), (0, 0, 0));
        announcer.restore();
        tell(&mut announcer, &owner, &mut shard);
        assert_eq!((held(&shard, 1), held(&shard, 2), held(&shard, 3)), (1, 1, 1));
    }

    #[test]
    fn an_owner_that_forgot_the_agent_need_not_be_told_that_it_goes() {
        let two = [("a", AgentRole::Combine), ("s", AgentRole::Scatter)];
        let (owner, fleet) = (AgentId::from("a"), topology(1, &two));
        let mut shard = Shard::new(owner.clone(), &fleet, 2, Limits::default());
        let mut announcer = Announcer::new("s".into(), Incarnation(1), Arc::clone(shard.ring()));
        announcer.record(has(1));
        tell(&mut announcer, &owner, &mut shard);
        shard.adopt(&topology(1, &two[..1])).unwrap();
        assert_eq!(held(&shard, 1), 0, "a holder that is not in the topology is forgotten");
        announcer.withdraw();
        tell(&mut announcer, &owner, &mut shard);
        assert_eq!(announcer.waiting().count(), 0);
        // Nor one that never knew it.
        let mut unknown = Announcer::new("t".into(), Incarnation(1), Arc::clone(shard.ring()));
        unknown.withdraw();
        assert!(unknown.next(&owner).is_none());
    }
}
