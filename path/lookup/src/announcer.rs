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
}

#[derive(Debug, Default)]
struct Stream {
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
        Self { agent, incarnation, ring, held: BTreeMap::new(), streams, dumps: 0, page: PAGE }
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
        if let Some(stream) = self.streams.get_mut(owner) {
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
            stream.in_flight = match stream.dump {
                Dump::Running(cursor) => Some(page(&self.held, &self.ring, owner, cursor, self.page)),
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
        let Some(stream) = self.streams.get_mut(owner) else { return };
        match verdict {
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
