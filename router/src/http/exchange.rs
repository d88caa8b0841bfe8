//! One exchange: headers and body in, an answer or a stream of it out. The same for both endpoints; what
//! differs is their [`Shape`].

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http_body_util::BodyExt;
use hypic_wire::trace;
use serde_json::Value;
use tracing::{Instrument, info_span};

use super::chat::Chat;
use super::collect::Collected;
use super::completions::Completions;
use super::fields::{Fields, cut};
use super::shape::{Head, Shape};
use super::{sse, usage};
use crate::front::{Front, Question, Served, Step};
use crate::refusal::Refusal;
use crate::serve::serve;
use crate::tenant::Policy;

/// A body must arrive within this time.
const BODY_TIME: Duration = Duration::from_secs(60);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MODE: HeaderName = HeaderName::from_static("x-hypic-mode");

pub(super) async fn chat(State(front): State<Arc<Front>>, request: Request) -> Result<Response, Refusal> {
    exchange::<Chat>(front, request).await
}

pub(super) async fn completions(
    State(front): State<Arc<Front>>,
    request: Request,
) -> Result<Response, Refusal> {
    exchange::<Completions>(front, request).await
}

async fn exchange<S: Shape>(front: Arc<Front>, request: Request) -> Result<Response, Refusal> {
    let span = info_span!("request", endpoint = S::ENDPOINT);
    trace::adopt_http(&span, request.headers());
    exchange_in_span::<S>(front, request).instrument(span).await
}

async fn exchange_in_span<S: Shape>(front: Arc<Front>, request: Request) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let policy = check_key(&front, &parts.headers)?;
    let body = read_body(&parts.headers, body, front.bounds.body).await?;
    let mut question = front
        .cpu
        .run(move || {
            let body = parse(&body)?;
            S::read(&Fields::body(&body)?, arrived)
        })
        .await??;
    if question.options.model != front.model.name.as_str() {
        return Err(Refusal::FindModel { model: cut(&question.options.model) });
    }
    mode_header(&parts.headers, &mut question)?;

    let (stream, include_usage) = (question.options.stream, question.options.include_usage);
    let (choices, scored) = (question.options.choices, question.logprobs.is_some());
    let served = serve(&front, &policy, question).await?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let head = Head {
        request: served.id.0.clone(),
        id: format!("{}-{}", S::ID, served.id),
        created,
        model: front.model.name.0.clone(),
    };
    let id = head.id.clone();
    let mut response = if stream {
        sse::stream::<S>(&front, head, served, choices, include_usage)
    } else {
        whole::<S>(head, served, choices, scored).await?
    };
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(response)
}

/// The policy of the request's key.
pub(super) fn check_key(front: &Front, headers: &HeaderMap) -> Result<Policy, Refusal> {
    front.tenants.now().check(headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok())).cloned()
}

/// Waits for the whole answer.
async fn whole<S: Shape>(
    head: Head,
    served: Served,
    choices: u32,
    scored: bool,
) -> Result<Response, Refusal> {
    let mut collected: Vec<Collected> = (0..choices).map(|_| Collected::default()).collect();
    let mut steps = served.steps;
    while let Some(step) = steps.next().await {
        match step? {
            Step::Delta { choice, delta } => {
                if let Some(collected) = collected.get_mut(choice as usize) {
                    collected.add(delta);
                }
            }
            Step::Finished { choice, finish } => {
                if let Some(collected) = collected.get_mut(choice as usize) {
                    collected.finish = Some(finish);
                }
            }
            Step::Done(account) => {
                let choices = (0..).zip(collected);
                let choices =
                    choices.map(|(choice, collected)| S::whole(&head, choice, collected, scored)).collect();
                let mut body = head.around(S::OBJECTS.0, choices);
                body["usage"] = usage::usage(&account);
                body["hypic"] = usage::hypic(&account);
                let mut response = Json(body).into_response();
                usage::server_timing(&mut response, &account.stations);
                return Ok(response);
            }
        }
    }
    Err(Refusal::Internal)
}

async fn read_body(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let read = if length.is_some_and(|length| length > limit) {
        None
    } else {
        let late = |_| broken("the body did not arrive in time");
        tokio::time::timeout(BODY_TIME, read_up_to(&mut body, limit)).await.map_err(late)??
    };
    match read {
        Some(read) => Ok(read),
        None => {
            discard(body, limit).await;
            Err(Refusal::FitBody { limit })
        }
    }
}

/// The whole body; `None` when it is longer than `limit`.
async fn read_up_to(body: &mut Body, limit: usize) -> Result<Option<Bytes>, Refusal> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| broken("the body could not be read"))?;
        let data = frame.data_ref().map_or(&[][..], Bytes::as_ref);
        if read.len() + data.len() > limit {
            return Ok(None);
        }
        read.extend_from_slice(data);
    }
    Ok(Some(read.freeze()))
}

fn broken(message: &str) -> Refusal {
    Refusal::BadRequest { message: message.to_owned(), param: None }
}

/// Reads on for a while, so that a client that is still sending gets to read its refusal instead of a reset.
async fn discard(mut body: Body, limit: usize) {
    let mut left = limit.saturating_mul(2);
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let len = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(len) else { return };
            left = rest;
        }
    };
    // A client that is slower than this is cut off.
    drop(tokio::time::timeout(Duration::from_secs(10), reading).await);
}

fn parse(body: &[u8]) -> Result<Value, Refusal> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    serde_json::from_slice(body).map_err(|error| Refusal::BadRequest {
        // The place only: the parser's own words name its types.
        message: format!("the body is not valid JSON at line {}, column {}", error.line(), error.column()),
        param: None,
    })
}

/// The mode may stand in a header, for clients that cannot add fields to the body.
fn mode_header(headers: &HeaderMap, question: &mut Question) -> Result<(), Refusal> {
    let Some(header) = headers.get(MODE) else { return Ok(()) };
    let header = header.to_str().unwrap_or_default();
    match &question.options.mode {
        Some(mode) if mode != header => {
            Err(Refusal::bad("hypic.mode", "'hypic.mode' and the header 'x-hypic-mode' differ"))
        }
        _ => {
            question.options.mode = Some(header.to_owned());
            Ok(())
        }
    }
}
