//! What the router knows of the fleet when it places a request.

use hypic_domain::id::AgentId;
use hypic_domain::model::ModelSpec;
use hypic_domain::tier::Tier;
use hypic_domain::topology::AgentRole;
use hypic_domain::tuple::TupleFormat;
use hypic_domain::unit::{Bytes, Millis, Tokens};

use crate::cost::{Curve, Link};

/// One agent that takes work now. Agents that drain, load or do not answer are left out of the view.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentView {
    /// Its name.
    pub id: AgentId,
    /// What it is for.
    pub role: AgentRole,
    /// Time of a batch of tokens.
    pub curve: Curve,
    /// Its side of a move to or from another agent.
    pub link: Link,
    /// From its own tiers to where it computes, [`Tier::Device`] first.
    pub tiers: [Link; 4],
    /// Work queued before this request.
    pub ahead: Millis,
}

impl AgentView {
    /// Time to bring `bytes` from one of its own tiers to where it computes.
    pub fn load_ms(&self, tier: Tier, bytes: Bytes) -> f64 {
        self.tiers[tier as usize].ms(bytes)
    }
}

/// The agents of one model and the sizes of its tuples.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetView {
    /// Agents that take work now.
    pub agents: Vec<AgentView>,
    /// Width of the seam, `w`.
    pub seam: Tokens,
    /// Layers of the model: tuples move layer by layer.
    pub layers: u32,
    /// Size of a tuple that does not exist yet.
    pub tuple: TupleSize,
}

/// Bytes of a tuple by the length of its body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TupleSize {
    /// Summaries and tails.
    pub fixed: Bytes,
    /// KV of one body token.
    pub per_token: Bytes,
}

impl TupleSize {
    /// Sizes for a model when a share `live` (0 to 1) of heads stores `T`.
    pub fn of(spec: &ModelSpec, live: f64, format: &TupleFormat) -> Self {
        let fixed = spec.tuple_bytes(Tokens(0), live, format);
        Self { fixed, per_token: spec.tuple_bytes(Tokens(1), live, format) - fixed }
    }

    /// Bytes of a tuple with `body` tokens.
    pub fn bytes(&self, body: Tokens) -> Bytes {
        Bytes(self.fixed.0 + self.per_token.0 * u64::from(body.0))
    }
}
