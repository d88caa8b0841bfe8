//! What ranks hold together: tensors, weights and finished layers.

use std::ops::Deref;
use std::sync::Arc;

use domain::tuple::TupleFormat;
use hypic_domain as domain;

use crate::op::{Device, OpError, Split};

/// What the ranks have of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Each has all of it.
    Whole,
    /// Each has the columns of its heads, or of its part of a feed-forward width.
    Columns,
    /// Each has a part of the sum.
    Sum,
}

/// Packed rows on every rank.
pub struct Tensor<D: Device> {
    pub(super) parts: Vec<D::Tensor>,
    pub(super) share: Share,
}

/// A weight, shared out.
pub struct Weight<D: Device> {
    pub(super) parts: Vec<D::Weight>,
    pub(super) split: Split,
}

/// One layer of a finished build on every rank.
pub struct Built<D: Device> {
    pub(super) parts: Vec<Arc<D::BuiltLayer>>,
    /// That of the whole layer where it is stored.
    pub(super) format: TupleFormat,
}

/// A tensor that is no open sum.
pub(super) enum Settled<'a, D: Device> {
    Kept(&'a Tensor<D>),
    Summed(Tensor<D>),
}

impl<D: Device> Deref for Settled<'_, D> {
    type Target = Tensor<D>;

    fn deref(&self) -> &Tensor<D> {
        match self {
            Self::Kept(tensor) => tensor,
            Self::Summed(tensor) => tensor,
        }
    }
}

impl<D: Device> Tensor<D> {
    /// The parts, if they are what an op needs.
    pub(super) fn as_share(&self, op: &'static str, share: Share) -> Result<&[D::Tensor], OpError> {
        match self.share == share {
            true => Ok(&self.parts),
            false => Err(OpError::shape(op, format!("{share:?} on each rank"), format!("{:?}", self.share))),
        }
    }
}

impl<D: Device> Weight<D> {
    pub(super) fn whole(&self, op: &'static str) -> Result<&[D::Weight], OpError> {
        match self.split {
            Split::Whole => Ok(&self.parts),
            _ => Err(OpError::shape(op, "a whole weight on each rank", format!("{:?}", self.split))),
        }
    }
}
