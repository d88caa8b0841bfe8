//! Refusals as OpenAI error bodies.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::refusal::Refusal;

/// The body, as a response or as the last event of a stream.
pub(super) fn body(refusal: &Refusal) -> Value {
    json!({
        "error": {
            "message": refusal.to_string(),
            "type": refusal.kind(),
            "param": refusal.param(),
            "code": refusal.code(),
        }
    })
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(body(&self))).into_response();
        let headers = response.headers_mut();
        match self {
            Self::Admit { retry_after } => {
                // Whole seconds, rounded up: nobody comes back too early.
                let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::CheckKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
