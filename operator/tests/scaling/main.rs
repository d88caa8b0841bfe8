//! The scatter autoscaler: the law as a table, its properties, faults seen elsewhere, and a simulated fleet.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what a helper cannot do fails the test")]

mod faults;
mod meter;
mod properties;
mod scene;
mod sim;
mod table;
