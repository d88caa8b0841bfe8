//! Chart, operator and fleets on a real Kubernetes: `cargo xtask test` starts it, installs the charts and runs this
//! inside. Not part of `cargo test`, which has no cluster.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test's helper fails its test")]

mod bad_input;
mod children;
mod faults;
mod monitoring;
mod narrow;
mod rest;
mod rights;
mod scaling;
mod serves;
mod support;
