//! Station 1: a request's prompt, cut into segments.
//!
//! `Request → render the chat template, part edges tracked → cut → tokenise → SegmentedRequest`. Start with
//! [`Segmenter::segment`].
//!
//! Invariants:
//! - the ids of all pieces, one behind the other, are the prompt of record, and the last piece is live;
//! - a segment's ids depend on the text of one declared part alone, never on its neighbours;
//! - a control token is one only where the template wrote every byte of it: text of users, documents, tools
//!   and their results that spells one is ordinary text. `/v1/completions` has no template, so there control
//!   tokens in the text are parsed, as everywhere;
//! - whatever the template does, tracked text equals the plain rendering, or the prompt stays uncut.
//!
//! The station is pure and synchronous: files are read once, at load, and the clock is passed in. It knows no
//! HTTP: the router parses OpenAI's JSON into [`hypic_domain::prompt`].

mod checkpoint;
mod context;
mod cut;
mod detokenise;
mod error;
mod mark;
mod memo;
mod segmenter;
mod split;
mod template;
mod tokenise;

pub use detokenise::Detokeniser;
pub use error::SegmentError;
pub use segmenter::{CutChanges, Segmenter};
pub use template::Clock;
pub use tokenise::Tokeniser;
