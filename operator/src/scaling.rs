//! How many scatter workers: signal → decide → actuate.
//!
//! [`Meter`] turns what the routers counted into one [`Signal`]; [`decide`] turns a signal and what was
//! [remembered](History) into a [`Decision`]. Who applies it is not here. Nothing here talks to Kubernetes or
//! does I/O, and the clock is an argument: any monotonic origin will do.
//!
//! The demand is cold tokens per second over what a worker builds per second. The share of cold tokens opens
//! the gate and is never a target: it does not fall when workers are added, so a ratio law on it runs to the
//! maximum. `docs/guide/scaling.md` has the law with an example.
//!
//! What is unknown never lowers anything. Read `signal.rs`, then `law.rs`, then `decide.rs`.

mod counters;
mod decide;
mod history;
mod law;
mod meter;
mod reason;
mod signal;

pub use counters::{Counters, Worker};
pub use decide::{Decision, decide};
pub use history::History;
pub use meter::{Meter, Pull, Settings, Unreachable};
pub use reason::Reason;
pub use signal::{Freshness, Signal};
