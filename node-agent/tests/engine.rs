//! The engine on the CPU device: exactness, company, memory, and the prototype's table.

#[path = "engine/harness.rs"]
mod harness;

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
