//! Station 3: where each segment comes from, as a pure function.
//!
//! [`solve`] takes a [`Problem`] (a located prompt and a view of the fleet) and gives a
//! [`Placement`](hypic_domain::flow::Placement) with its reasons. It reads no clock and draws no numbers:
//! the same problem has the same placement, in whatever order its agents are listed.
//!
//! It never moves a tuple that is recomputed faster than it is moved, never names an agent that is not in
//! the problem, and works without any scatter worker. Start with [`problem`], then [`lanes`]: what a
//! placement costs. `README.md` has the bound and its proof.

mod assign;
pub mod cost;
pub mod exact;
mod explain;
pub mod fleet;
pub mod lanes;
mod plan;
pub mod problem;
mod solve;

pub use cost::{Curve, Link};
pub use fleet::{AgentView, FleetView, TupleSize};
pub use lanes::{Choice, Lanes};
pub use problem::Problem;
pub use solve::solve;

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody can compose.
    #[error("no combine agent of {agents} agents is available")]
    ChooseCombine {
        /// Agents in the problem.
        agents: usize,
    },
    /// A located request whose parts do not lie beside each other.
    #[error("{located} answers of the index lie beside {pieces} pieces or boundaries")]
    ReadLocated {
        /// Pieces or boundaries.
        pieces: usize,
        /// Answers beside them.
        located: usize,
    },
    /// Points that are no curve.
    #[error("point {point} of a cost curve is not finite, not later or cheaper than the one before")]
    ReadCurve {
        /// Place of the first bad point; 0 where there is none at all.
        point: usize,
    },
}
