//! What ops take beside activations.

use domain::model::{FullShape, LinearShape};
use hypic_domain as domain;

use super::Device;

/// How an RMS norm uses its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// `x̂ (1 + w)`.
    ZeroCentred,
    /// `x̂ w`.
    Plain,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// How many there are.
    pub experts: usize,
    /// How many each row chooses: those with the largest scores.
    pub top: usize,
    /// Width of an expert's feed-forward part.
    pub intermediate: usize,
    /// Whether the shares of the chosen, of a softmax over all, are made to sum to 1.
    pub renormalise: bool,
}

/// Weights of a mixture of experts, one expert behind the other.
pub struct Experts<'a, D: Device> {
    /// Their shape.
    pub shape: ExpertShape,
    /// Scores, `[experts, hidden]`.
    pub router: &'a D::Weight,
    /// Gate and up of each, `[experts * 2 intermediate, hidden]`.
    pub gate_up: &'a D::Weight,
    /// Down of each, `[experts * hidden, intermediate]`.
    pub down: &'a D::Weight,
}

/// The expert that every row has, and its gate.
pub struct SharedExpert<'a, D: Device> {
    /// Gate and up, `[2 intermediate, hidden]`.
    pub gate_up: &'a D::Weight,
    /// Down, `[hidden, intermediate]`.
    pub down: &'a D::Weight,
    /// `[1, hidden]`: the share of a row is the sigmoid of its product.
    pub gate: &'a D::Weight,
}

/// Inputs of a linear-attention mixer behind its projections.
pub struct LinearInput<'a, D: Device> {
    /// Place of the layer in the model.
    pub layer: usize,
    /// Its shape.
    pub shape: &'a LinearShape,
    /// Raw convolution inputs `[rows, channels]`: queries, keys, values.
    pub raw: &'a D::Tensor,
    /// Taps of the short convolution, `[channels, K]`.
    pub conv: Option<&'a D::Weight>,
    /// What makes the decays and write strengths.
    pub gates: Gates<'a, D>,
}

/// Inputs of the gates, by family.
pub enum Gates<'a, D: Device> {
    /// GDN: `g = -exp(a_log) softplus(a + dt_bias)`, `b = sigmoid(b)`.
    Gdn {
        /// `[rows, heads]`.
        a: &'a D::Tensor,
        /// `[rows, heads]`.
        b: &'a D::Tensor,
        /// `[heads]`, kept in the checkpoint's precision.
        a_log: &'a D::Weight,
        /// `[heads]`.
        dt_bias: &'a D::Weight,
    },
}

/// Inputs of a full-attention mixer behind its projections and norms.
pub struct FullInput<'a, D: Device> {
    /// Place of the layer in the model.
    pub layer: usize,
    /// Its shape.
    pub shape: &'a FullShape,
    /// Queries before rotation, `[rows, heads * key]`.
    pub query: &'a D::Tensor,
    /// Keys before rotation, `[rows, kv heads * key]`.
    pub key: &'a D::Tensor,
    /// Values, `[rows, kv heads * value]`.
    pub value: &'a D::Tensor,
    /// `[context, rotary]`: cosines of the `rotary / 2` angles of a position, then their sines, from an f64 table.
    pub rope: &'a D::Weight,
    /// Factor on scores, usually `key^-0.5`.
    pub scale: f32,
}

/// An RMS norm over whole rows.
pub struct Norm<'a, D: Device> {
    /// `[width]`.
    pub weight: &'a D::Weight,
    /// Width of a row.
    pub width: usize,
    /// How the weight is used.
    pub style: NormWeight,
    /// What is added to the mean of squares.
    pub eps: f32,
}

/// The gated norm behind a linear mixer.
pub struct HeadGate<'a, D: Device> {
    /// `[rows, heads * value]`.
    pub gate: &'a D::Tensor,
    /// `[value]`.
    pub weight: &'a D::Weight,
    /// What is added to the mean of squares.
    pub eps: f32,
}

/// The norms of heads before a full mixer.
pub struct HeadNorms<'a, D: Device> {
    /// Of queries, `[key]`.
    pub query: &'a D::Weight,
    /// Of keys, `[key]`.
    pub key: &'a D::Weight,
    /// How both weights are used.
    pub style: NormWeight,
    /// What is added to the mean of squares.
    pub eps: f32,
}
