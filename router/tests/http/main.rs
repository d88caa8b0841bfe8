//! The router over real sockets: an HTTP client in front, stub agents behind that replay token ids.

mod client;
mod failures;
mod requests;
mod rig;
mod streams;
mod stub;
