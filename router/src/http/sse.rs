//! An answer as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use std::convert::Infallible;
use std::marker::PhantomData;

use super::shape::{Head, Shape};
use super::{CountedAtEnd, errors, usage};
use crate::front::{Front, Served, Step};
use crate::metrics::Metrics;
use crate::refusal::Refusal;

/// A comment: proxies see bytes, clients see nothing.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The response: its headers go out at once, its events as they come.
pub(super) fn stream<S: Shape>(
    front: &Arc<Front>,
    head: Head,
    served: Served,
    choices: u32,
    include_usage: bool,
) -> Response {
    let Served { stations, steps, .. } = served;
    let begun = vec![false; choices as usize];
    let events =
        Events::<S> { head, steps, begun, include_usage, metrics: front.metrics.clone(), shape: PhantomData };
    let body = Body::from_stream(written(events, front.bounds.keep_alive));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of the nginx family hold a stream back without this.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    usage::server_timing(&mut response, &stations);
    response.extensions_mut().insert(CountedAtEnd);
    response
}

/// The events of one answer.
struct Events<S> {
    head: Head,
    steps: std::pin::Pin<Box<dyn Stream<Item = Result<Step, Refusal>> + Send>>,
    /// Beside each choice: a chunk of it is out.
    begun: Vec<bool>,
    include_usage: bool,
    metrics: Arc<Metrics>,
    shape: PhantomData<S>,
}

/// The bytes of an answer. Comments fill silences, between events only.
fn written<S: Shape>(
    events: Events<S>,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    // A silence that never ends is a silence without comments.
    let silence = if keep_alive.is_zero() { Duration::MAX } else { keep_alive };
    stream::unfold(Some(events), move |events| async move {
        let mut events = events?;
        // The stream keeps its place when the wait for it is given up.
        let Ok(step) = tokio::time::timeout(silence, events.steps.next()).await else {
            return Some((Ok(Bytes::from_static(KEEP_ALIVE)), Some(events)));
        };
        let (text, over) = events.write(step);
        Some((Ok(Bytes::from(text)), (!over).then_some(events)))
    })
}

impl<S: Shape> Events<S> {
    /// The events of one step, and whether they are the last.
    fn write(&mut self, step: Option<Result<Step, Refusal>>) -> (String, bool) {
        match step.unwrap_or(Err(Refusal::Internal)) {
            Ok(Step::Delta { choice, delta }) => {
                let first = self.first(choice);
                (self.chunk(vec![S::delta(&self.head, choice, first, delta)], Value::Null), false)
            }
            Ok(Step::Finished { choice, finish }) => {
                let first = self.first(choice);
                (self.chunk(vec![S::finished(choice, first, finish)], Value::Null), false)
            }
            Ok(Step::Done(account)) => {
                self.metrics.observe_status(S::ENDPOINT, 200);
                let mut text = String::new();
                if self.include_usage {
                    let mut body = self.head.around(S::OBJECTS.1, Vec::new());
                    body["usage"] = usage::usage(&account);
                    body["hypic"] = usage::hypic(&account);
                    text = event(&body);
                }
                text.push_str("data: [DONE]\n\n");
                (text, true)
            }
            Err(refusal) => {
                // Half an answer must not look like a whole one: no `[DONE]` follows.
                self.metrics.observe_status(S::ENDPOINT, refusal.status().as_u16());
                (event(&errors::body(&refusal)), true)
            }
        }
    }

    fn chunk(&self, choices: Vec<Value>, usage: Value) -> String {
        let mut body = self.head.around(S::OBJECTS.1, choices);
        if self.include_usage {
            body["usage"] = usage;
        }
        event(&body)
    }

    fn first(&mut self, choice: u32) -> bool {
        self.begun.get_mut(choice as usize).is_some_and(|begun| !std::mem::replace(begun, true))
    }
}

fn event(body: &Value) -> String {
    format!("data: {body}\n\n")
}
