//! The engine on the CPU device: exactness, company, memory, and the prototype's table.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what a helper cannot do fails the test")]

#[path = "engine/harness.rs"]
mod harness;

#[path = "engine/bodies.rs"]
mod bodies;
#[path = "engine/direct.rs"]
mod direct;
#[path = "engine/exactness.rs"]
mod exactness;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/oracle.rs"]
mod oracle;
#[path = "engine/streams.rs"]
mod streams;
#[path = "engine/workers.rs"]
mod workers;
