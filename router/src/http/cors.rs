//! Browsers: off unless origins are named.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

/// Whose pages may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Origins as browsers write them; `*` stands for all.
    pub allowed: Vec<String>,
}

impl Origins {
    fn allow(&self, origin: &HeaderValue) -> bool {
        self.allowed.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
    }
}

/// Answers preflights without a key, since browsers send none there, and lets allowed pages read answers,
/// refusals too.
pub(super) async fn answer(State(origins): State<Arc<Origins>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN).filter(|origin| origins.allow(origin)).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight {
        let wanted = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(wanted) = wanted {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        }
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("retry-after, server-timing, x-request-id"),
    );
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}
