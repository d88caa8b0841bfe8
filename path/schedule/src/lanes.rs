//! What a placement costs: the lanes that work in parallel, and when the last one is done.
//!
//! The combine agent computes, loads from its own tiers and takes in bytes at the same time; each worker
//! builds its share as one batch and sends each layer when it is done. The prompt is ready when the slowest
//! lane is. Lanes hold whole counts of tokens and bytes, so that what is added can be taken away exactly.

use hypic_domain::flow::Holder;
use hypic_domain::tier::Tier;
use hypic_domain::topology::AgentRole;
use hypic_domain::unit::Bytes;

use crate::cost::Link;
use crate::fleet::AgentView;
use crate::problem::{Piece, Problem, Segment};

/// A worker is asked only if moving takes less than this share of building: the prediction is no better
/// than the curves behind it, and a draw would spend two agents to gain nothing.
const PAYS: f64 = 0.9;

/// Where one segment's tuple comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As the earlier piece at this place, which has the same segment.
    Repeat(usize),
    /// The combine agent has it.
    Local(Tier),
    /// A holder sends it.
    Fetch,
    /// Somebody builds it already; it is sent when it is done.
    Await,
    /// A scatter worker builds it: place in [`Lanes::workers`].
    Build(usize),
    /// The combine agent builds it.
    Here,
}

/// The lanes of one combine agent under a placement.
#[derive(Clone, Debug)]
pub struct Lanes<'p> {
    problem: &'p Problem,
    combine: &'p AgentView,
    workers: Vec<&'p AgentView>,
    /// The first piece behind the snapshot.
    first: usize,
    /// Tokens computed by the combine agent: live ones, seams, and segments built there.
    here: u64,
    /// Tokens that it would compute if it built every segment that it lacks.
    alone: u64,
    loads: [Moved; 4],
    taken_in: Moved,
    /// When the last tuple that others build already has arrived.
    awaited: f64,
    shares: Vec<Share>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    count: u64,
    bytes: u64,
}

/// What one worker builds and sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    tokens: u64,
    sent: Moved,
}

impl<'p> Lanes<'p> {
    /// The lanes of `combine` with what cannot be chosen: live tokens, and seams of segments behind the
    /// snapshot. Pieces before `first` are covered by the snapshot, which is loaded from `snapshot`.
    pub fn new(
        problem: &'p Problem,
        combine: &'p AgentView,
        first: usize,
        snapshot: Option<&Holder>,
    ) -> Self {
        let mut workers: Vec<&AgentView> =
            problem.agents.iter().filter(|agent| agent.role == AgentRole::Scatter).collect();
        workers.sort_by_key(|worker| (problem.rank(&worker.id), &worker.id));
        let mut lanes = Self {
            problem,
            combine,
            first,
            here: 0,
            alone: 0,
            loads: [Moved::default(); 4],
            taken_in: Moved::default(),
            awaited: 0.0,
            shares: vec![Share::default(); workers.len()],
            workers,
        };
        for piece in &problem.pieces[first..] {
            let live = piece.segment.as_ref().map_or(piece.tokens, |segment| segment.seam);
            lanes.here += u64::from(live.0);
            let lacks =
                |segment: &&Segment| lanes.local(segment).is_none() && lanes.repeat(segment).is_none();
            let built = piece.segment.as_ref().filter(lacks);
            lanes.alone += u64::from(live.0) + built.map_or(0, |_| u64::from(piece.tokens.0));
        }
        for piece in first..problem.pieces.len() {
            let segment = problem.pieces[piece].segment.as_ref();
            let awaited = segment.filter(|_| lanes.options(piece) == [Choice::Await]);
            if let Some((builder, segment)) = awaited.and_then(|s| Some((lanes.builder(s)?, s))) {
                let arrival = builder.ahead.0 + lanes.move_ms(builder, Tier::Device, segment.bytes);
                lanes.awaited = lanes.awaited.max(arrival);
            }
        }
        if let Some(holder) = snapshot {
            lanes.loads[holder.tier as usize].change(holder.bytes, true);
        }
        lanes
    }

    /// The combine agent.
    pub fn combine(&self) -> &'p AgentView {
        self.combine
    }

    /// Scatter workers, in the order in which equals are taken.
    pub fn workers(&self) -> &[&'p AgentView] {
        &self.workers
    }

    /// Puts the segment of a piece into the lanes of `choice`.
    pub fn add(&mut self, piece: usize, choice: Choice) {
        self.change(piece, choice, true);
    }

    /// Takes it out again.
    pub fn remove(&mut self, piece: usize, choice: Choice) {
        self.change(piece, choice, false);
    }

    fn change(&mut self, piece: usize, choice: Choice, add: bool) {
        let piece = &self.problem.pieces[piece];
        let Some(segment) = &piece.segment else { return };
        let count = |sum: &mut u64| {
            let tokens = u64::from(piece.tokens.0);
            *sum = if add { *sum + tokens } else { *sum - tokens };
        };
        match choice {
            Choice::Repeat(_) => {}
            Choice::Local(tier) => {
                let bytes = self.local(segment).map_or(segment.bytes, |holder| holder.bytes);
                self.loads[tier as usize].change(bytes, add);
            }
            Choice::Fetch | Choice::Await => self.taken_in.change(segment.bytes, add),
            Choice::Build(worker) => {
                self.taken_in.change(segment.bytes, add);
                self.shares[worker].sent.change(segment.bytes, add);
                count(&mut self.shares[worker].tokens);
            }
            Choice::Here => count(&mut self.here),
        }
    }

    /// Predicted milliseconds until the prompt is ready.
    pub fn completion(&self) -> f64 {
        let workers = (0..self.shares.len()).map(|worker| self.arrival(worker));
        workers.fold(self.own().max(self.loading()).max(self.taking_in()).max(self.awaited), f64::max)
    }

    /// When the lanes that `choice` uses are done.
    pub fn finish(&self, choice: Choice) -> f64 {
        match choice {
            Choice::Repeat(_) => 0.0,
            Choice::Local(_) => self.loading(),
            Choice::Fetch | Choice::Await => self.taking_in(),
            Choice::Build(worker) => self.arrival(worker).max(self.taking_in()),
            Choice::Here => self.own(),
        }
    }

    fn own(&self) -> f64 {
        self.combine.ahead.0 + self.combine.curve.ms(self.here)
    }

    fn loading(&self) -> f64 {
        self.loads.iter().zip(&self.combine.tiers).map(|(moved, link)| moved.ms(link)).sum()
    }

    fn taking_in(&self) -> f64 {
        self.taken_in.ms(&self.combine.link)
    }

    /// When the last layer of a worker's share is here: building and sending overlap, but for one layer of
    /// the shorter one. An idle worker is no lane.
    fn arrival(&self, worker: usize) -> f64 {
        let (share, worker) = (&self.shares[worker], self.workers[worker]);
        if share.sent.count == 0 {
            return 0.0;
        }
        let build = worker.curve.ms(share.tokens);
        let send = share.sent.ms(&worker.link);
        worker.ahead.0 + build.max(send) + build.min(send) / f64::from(self.problem.layers.max(1))
    }

    /// Whether two workers are the same but for their name, share included.
    pub(crate) fn alike(&self, one: usize, two: usize) -> bool {
        let (a, b) = (self.workers[one], self.workers[two]);
        self.shares[one] == self.shares[two] && a.curve == b.curve && a.link == b.link && a.ahead == b.ahead
    }

    /// Whether two segments weigh the same in every lane.
    pub(crate) fn same_size(&self, one: usize, two: usize) -> bool {
        let (a, b) = (&self.problem.pieces[one], &self.problem.pieces[two]);
        let bytes = |piece: &Piece| piece.segment.as_ref().map(|segment| segment.bytes);
        a.tokens == b.tokens && bytes(a) == bytes(b)
    }

    /// The combine agent's own claim, nearest tier first.
    pub(crate) fn local<'s>(&self, segment: &'s Segment) -> Option<&'s Holder> {
        let own = segment.holders.iter().filter(|holder| holder.agent == self.combine.id);
        own.min_by_key(|holder| holder.tier)
    }

    /// Milliseconds of building a piece here, as its share of one batch of all that is missing: what a move
    /// has to beat. The share, not what the piece adds: in a batch too small to fill the device it adds
    /// nothing, and no hit would ever pay.
    pub(crate) fn build_ms(&self, piece: usize) -> f64 {
        let tokens = u64::from(self.problem.pieces[piece].tokens.0);
        let all = self.alone.max(tokens).max(1);
        self.combine.curve.ms(all) * tokens as f64 / all as f64
    }

    /// Milliseconds to move a tuple here from another agent, out of `tier` there.
    pub(crate) fn move_ms(&self, from: &AgentView, tier: Tier, bytes: Bytes) -> f64 {
        from.link.and(&self.combine.link).ms(bytes).max(from.load_ms(tier, bytes))
    }

    /// An earlier piece with the same tuple, unless the snapshot covers it.
    fn repeat(&self, segment: &Segment) -> Option<usize> {
        segment.repeats.filter(|earlier| *earlier >= self.first)
    }

    /// Another agent of the problem that builds a segment already.
    fn builder(&self, segment: &Segment) -> Option<&'p AgentView> {
        let builder = segment.building.as_ref().filter(|agent| **agent != self.combine.id)?;
        self.problem.agents.iter().find(|agent| agent.id == *builder)
    }

    /// Other agents that have a segment with the time to move it, quickest first.
    pub(crate) fn senders(&self, segment: &Segment) -> Vec<(&'p AgentView, f64)> {
        let others = segment.holders.iter().filter(|holder| holder.agent != self.combine.id);
        let mut senders: Vec<(&AgentView, f64)> = others
            .filter_map(|holder| {
                let agent = self.problem.agents.iter().find(|agent| agent.id == holder.agent)?;
                Some((agent, self.move_ms(agent, holder.tier, holder.bytes)))
            })
            .collect();
        let rank = |agent: &AgentView| self.problem.rank(&agent.id);
        senders.sort_by(|(a, x), (b, y)| x.total_cmp(y).then(rank(a).cmp(&rank(b))).then(a.id.cmp(&b.id)));
        senders
    }

    /// Whether a tuple moves here from a worker clearly faster than it is built here in `build` milliseconds.
    pub(crate) fn scatter_pays(&self, worker: &AgentView, segment: &Segment, build: f64) -> bool {
        self.move_ms(worker, Tier::Device, segment.bytes) < PAYS * build
    }

    /// What may be chosen for a piece; empty for pieces without a segment.
    ///
    /// A tuple is moved only where that is faster than building it: the link into an agent is as scarce as
    /// its compute, and a slow move only makes the link what everybody waits for. One that exists and moves
    /// faster is used in any case: to build it again would spend compute and memory to gain a few
    /// milliseconds of one request. So only cold segments leave a choice.
    pub fn options(&self, piece: usize) -> Vec<Choice> {
        let Some(segment) = &self.problem.pieces[piece].segment else { return Vec::new() };
        if let Some(earlier) = self.repeat(segment) {
            return vec![Choice::Repeat(earlier)];
        }
        let build = self.build_ms(piece);
        if let Some(holder) = self.local(segment) {
            let load = self.combine.load_ms(holder.tier, holder.bytes);
            let pays = holder.tier == Tier::Device || load < build;
            return vec![if pays { Choice::Local(holder.tier) } else { Choice::Here }];
        }
        if let Some((_, move_ms)) = self.senders(segment).first() {
            return vec![if *move_ms < build { Choice::Fetch } else { Choice::Here }];
        }
        if self.builder(segment).is_some() {
            return vec![Choice::Await];
        }
        let pays = |worker: &AgentView| self.scatter_pays(worker, segment, build);
        let workers = self.workers.iter().enumerate().filter(|(_, worker)| pays(worker));
        std::iter::once(Choice::Here).chain(workers.map(|(place, _)| Choice::Build(place))).collect()
    }
}

impl Moved {
    fn change(&mut self, bytes: Bytes, add: bool) {
        if add {
            self.count += 1;
            self.bytes += bytes.0;
        } else {
            self.count -= 1;
            self.bytes -= bytes.0;
        }
    }

    fn ms(&self, link: &Link) -> f64 {
        link.fixed.0 * self.count as f64 + link.per_byte * self.bytes as f64
    }
}
