//! Entry points: the driver with the kernels' machine code, and the kernels as host code.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "fibers")]
mod fibers;
#[cfg(feature = "cuda")]
mod peers;
#[cfg(feature = "cuda")]
mod products;

#[cfg(feature = "cuda")]
pub(crate) use cuda::{Context, RecordedGraph, failed};
#[cfg(feature = "fibers")]
pub(crate) use fibers::{Fibers, HostCopy, Tape, Units, Work};
#[cfg(feature = "cuda")]
pub(crate) use products::Product;
