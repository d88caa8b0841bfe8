//! The hand-off types of the path, in path order:
//! `Request → segment → SegmentedRequest → lookup → LocatedRequest → schedule → Placement → scatter →
//! GatheredSegments → compose + seam → ReadyState → decode → TokenStream`.
//!
//! Segment to schedule run in the router; from [`Order`] on, the chosen combine agent.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, Incarnation, ModelId, RequestId, TenantId};
use crate::key::{Scope, SegmentKey};
use crate::prompt::Prompt;
use crate::sampling::{FinishReason, Sampling};
use crate::tier::Tier;
use crate::unit::{Bytes, Millis, Tokens};

/// How a request is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Full prefill; nothing cached is used.
    Recompute,
    /// Exact prefix snapshots, the rest in context. Publishes no tuples.
    Prefix,
    /// Cached segments composed behind any prefix, with the seam recomputed.
    #[default]
    Pic,
    /// Naive addition of states: for the bench only.
    Add,
    /// The last body's state only (LinearKV's policy).
    Last,
}

impl Mode {
    /// Every mode, in the order in which tables show them.
    pub const ALL: [Self; 5] = [Self::Recompute, Self::Prefix, Self::Pic, Self::Add, Self::Last];

    /// The name in requests, answers, metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recompute => "recompute",
            Self::Prefix => "prefix",
            Self::Pic => "pic",
            Self::Add => "add",
            Self::Last => "last",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether the mode uses and publishes tuples.
    pub fn composes(self) -> bool {
        matches!(self, Self::Pic | Self::Add | Self::Last)
    }
}

/// What enters the path.
#[derive(Clone, Debug)]
pub struct Request {
    /// For logs and traces.
    pub id: RequestId,
    /// Who asks.
    pub tenant: TenantId,
    /// Whose tuples it may use.
    pub scope: Scope,
    /// The model asked for.
    pub model: ModelId,
    /// How it is computed.
    pub mode: Mode,
    /// What is to be answered.
    pub prompt: Prompt,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// When it must be done.
    pub deadline: Option<Instant>,
}

/// Where a piece came from; it decides nothing, and is shown in answers and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Written by the template.
    Template,
    /// A system text.
    System,
    /// A tool's schema.
    Tool,
    /// A part of a user turn.
    Part,
    /// An earlier turn of the conversation.
    Turn,
    /// A tool's result.
    ToolResult,
    /// A marked span of a plain completion.
    Marked,
    /// The end of the prompt: never cached.
    Query,
}

/// One span of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Where it came from.
    pub origin: Origin,
    /// Key of its tuple; `None` for a live piece.
    pub key: Option<SegmentKey>,
}

/// A prompt cut into pieces. The ids of all pieces, one behind the other, are the prompt of record.
#[derive(Clone, Debug)]
pub struct SegmentedRequest {
    /// What entered.
    pub request: Request,
    /// Pieces in prompt order. The last is live.
    pub pieces: Vec<Piece>,
    /// Boundaries at which a prefix snapshot may stand, shortest first: tokens before the boundary and the
    /// key of the exact snapshot there.
    pub boundaries: Vec<(Tokens, SegmentKey)>,
}

impl SegmentedRequest {
    /// Tokens of the whole prompt.
    pub fn tokens(&self) -> Tokens {
        self.pieces.iter().map(|piece| Tokens(piece.ids.len() as u32)).sum()
    }

    /// The pieces that are segments, with their place in `pieces`.
    pub fn segments(&self) -> impl Iterator<Item = (usize, &Piece)> {
        self.pieces.iter().enumerate().filter(|(_, piece)| piece.key.is_some())
    }
}

/// An agent that says it has a tuple.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which agent.
    pub agent: AgentId,
    /// In which of its lives.
    pub incarnation: Incarnation,
    /// The nearest tier it has it in.
    pub tier: Tier,
    /// Size there.
    pub bytes: Bytes,
}

/// What the index knows of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Agents that have it.
    pub holders: Vec<Holder>,
    /// An agent that builds it now.
    pub building: Option<AgentId>,
}

/// A segmented prompt with what the index knows. A stale answer costs a recompute and nothing else.
#[derive(Clone, Debug)]
pub struct LocatedRequest {
    /// The prompt.
    pub segmented: SegmentedRequest,
    /// Beside each piece; empty for live ones.
    pub located: Vec<Located>,
    /// Beside each boundary: who has the exact snapshot there.
    pub snapshots: Vec<Located>,
}

/// Where the tuple of one segment is to come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub enum Source {
    /// The combine agent has it.
    Local,
    /// Holders to fetch it from, best first.
    Fetch {
        /// Agents to ask in turn.
        holders: Vec<AgentId>,
    },
    /// A scatter worker builds it.
    Build {
        /// The worker.
        worker: AgentId,
    },
    /// The combine agent builds it.
    BuildHere,
}

/// Why one segment got its source: shown in traces, answers and `explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Place of the segment in the prompt's pieces; `None` for the choice of the combine agent.
    pub piece: Option<usize>,
    /// One sentence.
    pub text: String,
    /// Predicted time of what was chosen.
    pub cost: Millis,
}

/// Which worker builds or sends which segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Composes and decodes.
    pub combine: AgentId,
    /// Tokens covered by the exact snapshot to start from; 0 for none.
    pub snapshot: Tokens,
    /// Beside each piece; `None` for live ones and those that the snapshot covers.
    pub sources: Vec<Option<Source>>,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// What the router sends to the combine agent.
#[derive(Clone, Debug)]
pub struct Order {
    /// For logs and traces.
    pub id: RequestId,
    /// For fair queueing.
    pub tenant: TenantId,
    /// For keys of snapshots.
    pub scope: Scope,
    /// How it is computed.
    pub mode: Mode,
    /// The prompt.
    pub pieces: Vec<Piece>,
    /// Boundaries for snapshots, as in [`SegmentedRequest`].
    pub boundaries: Vec<(Tokens, SegmentKey)>,
    /// Beside each piece.
    pub sources: Vec<Option<Source>>,
    /// Tokens covered by the exact snapshot to start from.
    pub snapshot: Tokens,
    /// How tokens are drawn, one entry per choice.
    pub choices: Vec<Sampling>,
    /// Milliseconds left.
    pub deadline: Option<Millis>,
    /// Token ids of an answer to continue: a request whose agent died goes on elsewhere with these.
    pub answered: Vec<u32>,
    /// Measure KL(recompute ‖ mode) of the first answer token.
    pub measure_gap: bool,
}

/// Segments on their way, as handles: each (segment, layer) resolves on its own.
#[derive(Clone, Debug)]
pub struct GatheredSegments<H> {
    /// Beside each piece of the order; `None` for live ones.
    pub handles: Vec<Option<H>>,
}

/// Why a segment was cold, or why a hit was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColdReason {
    /// Nobody has it.
    Unknown,
    /// The index named a holder that no longer has it.
    Stale,
    /// A holder did not answer in time.
    FetchFailed,
    /// A byte was wrong.
    Corrupt,
    /// Its ids differ from the ones asked for.
    Mismatch,
    /// Building was cheaper than moving.
    CheaperToBuild,
    /// The index could not be asked.
    IndexAway,
}

impl ColdReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Stale,
        Self::FetchFailed,
        Self::Corrupt,
        Self::Mismatch,
        Self::CheaperToBuild,
        Self::IndexAway,
    ];

    /// The name in answers, metrics and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Stale => "stale",
            Self::FetchFailed => "fetch_failed",
            Self::Corrupt => "corrupt",
            Self::Mismatch => "mismatch",
            Self::CheaperToBuild => "cheaper_to_build",
            Self::IndexAway => "index_away",
        }
    }
}

/// How one segment was had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Place in the prompt's pieces.
    pub piece: usize,
    /// What happened.
    pub outcome: SegmentOutcome,
    /// Who built it or sent it.
    pub by: Option<AgentId>,
}

/// What happened to one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum SegmentOutcome {
    /// The combine agent had it.
    Hit {
        /// In which tier.
        tier: Tier,
    },
    /// It came from another agent.
    Fetched,
    /// It was built for this request.
    Built {
        /// Why it had to be.
        cold: ColdReason,
    },
}

/// How a prompt's tokens were had: the five add up to the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptCounts {
    /// From an exact snapshot.
    pub exact: u32,
    /// Body tokens of tuples that existed.
    pub hit: u32,
    /// Body tokens of tuples built for this request.
    pub built: u32,
    /// Seam tokens.
    pub seam: u32,
    /// Computed in context.
    pub live: u32,
}

impl PromptCounts {
    /// Tokens of the prompt.
    pub fn total(&self) -> u32 {
        self.exact + self.hit + self.built + self.seam + self.live
    }

    /// `prompt_tokens_details.cached_tokens`.
    pub fn cached(&self) -> u32 {
        self.exact + self.hit
    }
}

/// A prompt whose running state is ready: decoding may begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadyState {
    /// How the prompt's tokens were had.
    pub counts: PromptCounts,
    /// How each segment was had.
    pub segments: Vec<SegmentReport>,
    /// Milliseconds per station on the agent, in order.
    pub stations: Vec<(String, Millis)>,
    /// KL(recompute ‖ mode) of the first answer token, in nats, where it was measured.
    pub gap: Option<f64>,
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnToken {
    /// Which choice of the request.
    pub choice: u32,
    /// The id.
    pub id: u32,
    /// Its log probability, finite; where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// What a stream of tokens carries.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEvent {
    /// Prefill is done.
    Ready(ReadyState),
    /// A token.
    Token(DrawnToken),
    /// One choice is complete.
    Finished {
        /// Which.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
}
