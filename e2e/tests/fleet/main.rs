//! Real processes: cold and warm, killed workers, killed holders, killed replicas, real clients.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

mod bad_input;
mod clients;
mod faults;
mod http;
mod pressure;
mod raw;
mod steer;
mod support;
mod topology;
mod warm;
