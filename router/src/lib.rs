//! The front door: an OpenAI-compatible server that cuts, looks up, schedules and streams.
