//! A real cluster for tests: each test has a namespace of its own, all share the cluster and its operator.

mod fleet;
mod kubectl;
mod lab;
mod namespace;
mod traffic;
mod turn;
mod wait;

pub(crate) use fleet::{Fleet, cluster, model, scatter};
pub(crate) use kubectl::{helm, items, kubectl, text};
pub(crate) use lab::{AuditLog, kill_api_server, link, panels, pod_command, workspace};
pub(crate) use namespace::Namespace;
pub(crate) use traffic::{Traffic, new_documents, question};
pub(crate) use wait::{for_a_while, wait_for};

/// Where the chart puts the operator.
pub(crate) const SYSTEM: &str = "hypic-system";
/// The operator's account.
pub(crate) const OPERATOR: &str = "system:serviceaccount:hypic-system:hypic-operator";
