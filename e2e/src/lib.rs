//! Fleets of real processes on loopback, a client as users have one, and the demo's questions and tables.
//!
//! Used by the end-to-end tests, by `cargo xtask up` and by the benches, so that all three run the same thing.

pub mod certificates;
pub mod client;
pub mod demo;
pub mod fleet;
pub mod kubectl;
pub mod pass;
pub mod push;
pub mod questions;
pub mod report;
pub mod show;
