//! The operator: observe → validate → plan → apply → report, for each kind.

pub mod scaling;
