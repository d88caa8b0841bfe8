//! The families of linear attention and the form of their transition operator.

use serde::{Deserialize, Serialize};

/// How a linear-attention layer advances its state: `S <- A_t S + u_t` (DESIGN §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Plain linear attention, `A = I`: the control in which adding states is right.
    Linear,
    /// RetNet, lightning attention (Ring, MiniMax): `A = exp(-s_h) I`.
    Retention,
    /// Mamba-2: `A = exp(-a_h dt_t) I`.
    Mamba2,
    /// Gated linear attention: `A = diag(exp g_t)`.
    Gla,
    /// The delta rule: `A = I - b k k^T`.
    DeltaNet,
    /// Gated delta net (Qwen3-Next, Qwen3.5): `A = exp(g_t) (I - b k k^T)`.
    Gdn,
    /// Kimi delta attention: `A = (I - b k k^T) diag(exp g_t)`.
    Kda,
}

/// What must be stored of a segment's transition operator `T`, per value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionForm {
    /// `T = I`: nothing.
    Identity,
    /// One number.
    Scalar,
    /// One number per key channel.
    Diagonal,
    /// A `[key, key]` matrix.
    Dense,
}

impl Family {
    /// Every family, in the order of DESIGN §3.
    pub const ALL: [Self; 7] =
        [Self::Linear, Self::Retention, Self::Mamba2, Self::Gla, Self::DeltaNet, Self::Gdn, Self::Kda];

    /// The form of the family's transition operator.
    pub fn transition(self) -> TransitionForm {
        match self {
            Self::Linear => TransitionForm::Identity,
            Self::Retention | Self::Mamba2 => TransitionForm::Scalar,
            Self::Gla => TransitionForm::Diagonal,
            Self::DeltaNet | Self::Gdn | Self::Kda => TransitionForm::Dense,
        }
    }
}

impl TransitionForm {
    /// Numbers stored per head for keys of width `key`.
    pub fn len(self, key: usize) -> usize {
        match self {
            Self::Identity => 0,
            Self::Scalar => 1,
            Self::Diagonal => key,
            Self::Dense => key * key,
        }
    }

    /// Whether nothing is stored.
    pub fn is_empty(self) -> bool {
        self == Self::Identity
    }
}
