//! Real processes: cold and warm, killed workers, killed holders, killed replicas, real clients.

mod bad_input;
mod clients;
mod faults;
mod http;
mod pressure;
mod raw;
mod support;
mod topology;
mod warm;
