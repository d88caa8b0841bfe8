//! What probes and Prometheus ask. No key: they have none, and nothing here tells of requests.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::front::Front;
use crate::refusal::Refusal;

/// The process answers.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Requests should be sent here: an agent that composes is ready, and the router stays.
pub(super) async fn readyz(State(front): State<Arc<Front>>) -> Result<&'static str, Refusal> {
    if front.leaving.is_cancelled() {
        return Err(Refusal::ShutDown);
    }
    if front.fleet.snapshot().is_ready() { Ok("ready\n") } else { Err(Refusal::FindAgent) }
}

pub(super) async fn metrics(State(front): State<Arc<Front>>) -> Result<Response, Refusal> {
    let (running, queued) = front.admission.counts();
    front.metrics.running.set(i64::try_from(running).unwrap_or(i64::MAX));
    front.metrics.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
    let oldest = front.admission.oldest().map_or(0.0, |oldest| oldest.elapsed().as_secs_f64());
    front.metrics.admit_oldest_seconds.set(oldest);
    let text = front.metrics.text().map_err(|error| {
        tracing::error!(%error, "the metrics could not be written");
        Refusal::Internal
    })?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
