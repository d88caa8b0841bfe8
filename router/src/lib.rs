//! The front door: an OpenAI-compatible server that cuts, looks up, schedules and streams.
pub mod admission;
pub mod answer;
pub mod http;
pub mod refusal;
