//! The front door: an OpenAI-compatible server that cuts, looks up, schedules and streams.
//!
//! [`serve`] is a request's way through the router, top to bottom: admit → segment → lookup → schedule →
//! generate. [`http`] is the OpenAI surface around it; [`answer`] reads a model's text while it arrives.
//!
//! Never: sees a tensor byte, knows a kernel or a tier's contents, talks to Kubernetes, logs a key or a
//! prompt. A request is never refused because the index or a worker is away.
//!
//! Invariants: dropping an answer's stream frees everything the request holds, here and on the agents; a slow
//! reader holds constant memory; the unstreamed answer is what the streamed one joins to; half an answer never
//! ends like a whole one.

pub mod admission;
pub mod answer;
pub mod args;
pub mod error;
pub mod fleet_view;
pub mod front;
pub mod grpc;
pub mod http;
pub mod listen;
pub mod lookup;
pub mod metrics;
pub mod refusal;
pub mod run;
pub mod schedule;
pub mod serve;
pub mod temperature;
pub mod tenant;

mod generate;
