//! What is to be placed: a prompt's pieces, and the agents that could have a part in it.

use hypic_domain::flow::{Holder, LocatedRequest, Mode};
use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_domain::unit::{Bytes, Tokens};

use crate::Error;
use crate::fleet::{AgentView, FleetView};

/// Everything that a placement depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Spreads requests over agents that would cost the same.
    pub seed: u64,
    /// Layers of the model: a tuple moves in so many steps, behind the build.
    pub layers: u32,
    /// Pieces in prompt order.
    pub pieces: Vec<Piece>,
    /// Exact prefix snapshots that somebody has.
    pub snapshots: Vec<Snapshot>,
    /// Agents that take work.
    pub agents: Vec<AgentView>,
}

/// One span of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Length.
    pub tokens: Tokens,
    /// For pieces whose tuple is used; `None` for those computed in context.
    pub segment: Option<Segment>,
}

/// The tuple of one piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Tokens recomputed in context.
    pub seam: Tokens,
    /// Size, predicted where nobody has it.
    pub bytes: Bytes,
    /// Who has it, by the index.
    pub holders: Vec<Holder>,
    /// Who builds it now, by the index.
    pub building: Option<AgentId>,
    /// The nearest earlier piece with the same key: its tuple serves here as well.
    pub repeats: Option<usize>,
}

/// An exact prefix snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Tokens that it covers: whole pieces from the prompt's start.
    pub tokens: Tokens,
    /// Who has it.
    pub holders: Vec<Holder>,
}

impl Problem {
    /// The problem of a located request: modes that do not compose use no tuple, and only `prefix` and `pic`
    /// start from snapshots. The index may name agents that are gone; [`solve`](crate::solve) passes them over.
    ///
    /// # Errors
    /// [`Error::ReadLocated`] if the index's answers do not lie beside the request's pieces and boundaries.
    pub fn new(located: &LocatedRequest, fleet: &FleetView) -> Result<Self, Error> {
        let segmented = &located.segmented;
        let mode = segmented.request.mode;
        beside(segmented.pieces.len(), located.located.len())?;
        beside(segmented.boundaries.len(), located.snapshots.len())?;
        let pieces =
            segmented.pieces.iter().zip(&located.located).enumerate().map(|(place, (piece, answer))| {
                let tokens = Tokens(piece.ids.len() as u32);
                let seam = fleet.seam.min(tokens);
                // A piece without a body has no tuple.
                let usable = mode.composes() && piece.key.is_some() && seam < tokens;
                let segment = usable.then(|| {
                    let predicted = || fleet.tuple.bytes(tokens - seam);
                    let bytes = answer.holders.first().map_or_else(predicted, |holder| holder.bytes);
                    let repeats =
                        segmented.pieces[..place].iter().rposition(|earlier| earlier.key == piece.key);
                    let (holders, building) = (answer.holders.clone(), answer.building.clone());
                    Segment { seam, bytes, holders, building, repeats }
                });
                Piece { tokens, segment }
            });
        let snapshots = segmented.boundaries.iter().zip(&located.snapshots);
        let snapshots = snapshots
            .map(|((tokens, _), answer)| Snapshot { tokens: *tokens, holders: answer.holders.clone() });
        let exact = matches!(mode, Mode::Prefix | Mode::Pic);
        let keys = segmented.pieces.iter().filter_map(|piece| piece.key.as_ref());
        Ok(Self {
            seed: keys.fold(hash(segmented.request.tenant.as_str().as_bytes()), |sum, key| sum ^ word(key)),
            layers: fleet.layers,
            pieces: pieces.collect(),
            snapshots: snapshots.filter(|snapshot| exact && !snapshot.holders.is_empty()).collect(),
            agents: fleet.agents.clone(),
        })
    }

    /// Place of an agent's draw among equals.
    pub(crate) fn rank(&self, agent: &AgentId) -> u64 {
        let mut x = self.seed ^ hash(agent.as_str().as_bytes());
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

fn beside(pieces: usize, located: usize) -> Result<(), Error> {
    if pieces == located { Ok(()) } else { Err(Error::ReadLocated { pieces, located }) }
}

/// 64 bits of a key. Xor over a request's keys does not depend on their order: the same documents in another
/// order are drawn to the same agents.
fn word(key: &SegmentKey) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&key.0[16..24]);
    u64::from_le_bytes(word)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
