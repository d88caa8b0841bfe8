//! The OpenAI surface: what is read, what is written, and nothing about how it is answered.
//!
//! Choices where the reference leaves one: unknown fields are ignored; of `max_tokens` and
//! `max_completion_tokens` the newer wins; without either the context is the limit; an empty list of parts is
//! empty content; chat `logprobs` cover every token of the answer, those of reasoning and calls too; a client
//! that shuts its sending side counts as gone, since nothing tells it from one that closed.

pub mod options;

mod chat;
mod collect;
mod completions;
mod cors;
mod errors;
mod exchange;
mod fields;
mod messages;
mod models;
mod operations;
mod scores;
mod shape;
mod sse;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};

use crate::front::Front;
use crate::refusal::Refusal;

pub use cors::Origins;

/// All routes. Browsers of `origins` may call them.
pub fn routes(front: Arc<Front>, origins: Origins) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(exchange::chat))
        .route("/v1/completions", post(exchange::completions))
        .route("/v1/models", get(models::list))
        // Ids may hold slashes, spelt as such or as %2F.
        .route("/v1/models/{*id}", get(models::one))
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(operations::readyz))
        .route("/metrics", get(operations::metrics))
        .fallback(async || Refusal::FindPath)
        .method_not_allowed_fallback(async || Refusal::AllowMethod)
        .layer(middleware::from_fn_with_state(front.clone(), count))
        .layer(middleware::from_fn_with_state(Arc::new(origins), cors::answer))
        .with_state(front)
}

/// On a response whose status is counted when its stream ends.
#[derive(Clone, Copy)]
struct CountedAtEnd;

async fn count(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let endpoint =
        request.extensions().get::<MatchedPath>().map_or("unmatched", |path| endpoint(path.as_str()));
    let response = next.run(request).await;
    if response.extensions().get::<CountedAtEnd>().is_none() {
        front.metrics.observe_status(endpoint, response.status().as_u16());
    }
    response
}

/// The label of a route template.
fn endpoint(template: &str) -> &'static str {
    match template {
        "/v1/chat/completions" => "chat_completions",
        "/v1/completions" => "completions",
        "/v1/models" | "/v1/models/{*id}" => "models",
        "/healthz" => "healthz",
        "/readyz" => "readyz",
        "/metrics" => "metrics",
        _ => "unmatched",
    }
}
