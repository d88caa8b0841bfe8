//! Real processes: cold and warm, killed workers, killed holders, killed replicas, real clients.

mod clients;
mod faults;
mod support;
mod topology;
mod warm;
