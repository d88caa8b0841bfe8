//! The operator: observe → validate → plan → apply → report, for each kind. Start at [`reconcile`].

pub mod actuate;
pub mod apply;
pub mod args;
pub mod controllers;
pub mod cover;
pub mod fault;
pub mod lease;
pub mod metrics;
pub mod model;
pub mod observe;
pub mod patience;
pub mod pki;
pub mod plan;
pub mod pulse;
pub mod reconcile;
pub mod report;
pub mod rollout;
pub mod run;
pub mod scaling;
pub mod schema;
pub mod secrets;
pub mod serve;
pub mod spread;
pub mod status;
pub mod trouble;
pub mod validate;
