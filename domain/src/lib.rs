//! The words of the system, as types. Read [`flow`] first: the hand-off types of the path, in path order.
//!
//! *segment*: span of prompt tokens cached as one. *seam*: its first `w` tokens, always recomputed in
//! context. *body*: the tokens `[w, L)`. *summary*: `(T, S)` of the body for one linear layer and head.
//! *tail*: the last `K-1` raw inputs of the short convolution. *tuple*: everything cached for one segment.
//! *holder*: an agent that has a tuple. *tier*: where it lies. *identity*: digest of all that makes tuples
//! compatible. *agent*: one node-agent process. *combine agent*: composes requests and decodes them.
//! *scatter worker*: builds cold segments. *cold*: no usable tuple anywhere. *placement*: which worker
//! builds or sends which segment.
//!
//! This crate does no I/O and knows no async runtime, no tensor library, no Kubernetes and no RPC.

pub mod family;
pub mod flow;
pub mod id;
pub mod key;
pub mod logits;
pub mod model;
pub mod part;
pub mod prompt;
pub mod sampling;
pub mod serving;
pub mod tier;
pub mod topology;
pub mod tuple;
pub mod unit;
pub mod values;
