//! The serving side: range GETs over tuples, finished or still being built.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hypic_domain::key::SegmentKey;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::counters::{BulkCounters, count};
use super::paced::Paced;
use super::{PartError, Tickets, unix_now};
use crate::tls::{Io, Protocol, Security};

/// Where the served bytes come from.
pub trait PartSource: Send + Sync + 'static {
    /// `len` bytes of the tuple's parts from `offset`, under the lease of the asker's ticket. A tuple that is
    /// still being built serves the parts that are done. The bytes share the tuple's memory and hold it until
    /// they are sent.
    fn read(
        &self,
        key: SegmentKey,
        lease: u64,
        offset: u64,
        len: u64,
    ) -> BoxFuture<'static, Result<Bytes, ReadPart>>;
}

/// Why a range cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadPart {
    /// Never had it.
    #[error("no such segment")]
    Unknown,
    /// Had it; it is evicted, or the lease has ended.
    #[error("the segment is gone")]
    Gone,
    /// It is there; the range is not inside it, or not built yet.
    #[error("the range is not readable")]
    Range,
    /// Too much to do.
    #[error("busy")]
    Busy {
        /// When to ask again.
        retry: Duration,
    },
}

/// Bounds of the serving side.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Open connections.
    pub connections: usize,
    /// Answers on their way at once, over all connections; each holds its tuple in memory.
    pub answers: usize,
    /// A write that makes no progress for this long ends its connection.
    pub progress: Duration,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            answers: 256,
            progress: Duration::from_secs(5),
            idle: Duration::from_secs(60),
        }
    }
}

/// Serves tensor bytes to whoever holds a ticket.
pub struct BulkServer {
    source: Arc<dyn PartSource>,
    tickets: Arc<Tickets>,
    limits: ServeLimits,
    answers: Arc<Semaphore>,
    counters: Arc<BulkCounters>,
}

impl BulkServer {
    /// A server over `source`.
    pub fn new(source: Arc<dyn PartSource>, tickets: Arc<Tickets>, limits: ServeLimits) -> Self {
        let answers = Arc::new(Semaphore::new(limits.answers));
        Self { source, tickets, limits, answers, counters: Arc::default() }
    }

    /// What was served: bytes and parts handed to connections.
    pub fn counters(&self) -> &Arc<BulkCounters> {
        &self.counters
    }

    /// Serves until `shutdown`, then lets go of all connections.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        security: Security,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < self.limits.connections => match accepted {
                    Ok((stream, peer)) => {
                        let (server, security) = (Arc::clone(&self), security.clone());
                        connections.spawn(async move {
                            match security.accept(stream, Protocol::Bulk).await {
                                Ok((io, _peer)) => server.connection(io).await,
                                Err(error) => tracing::debug!(%peer, %error, "refuse a bulk connection"),
                            }
                        });
                    }
                    Err(error) => {
                        // Out of file descriptors, mostly: pause, or the loop would spin.
                        tracing::warn!(%error, "accept a bulk connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
    }

    async fn connection(self: Arc<Self>, io: Box<dyn Io>) {
        let idle = self.limits.idle;
        let io = TokioIo::new(Paced::new(io, self.limits.progress));
        let service = service_fn(move |request: Request<Incoming>| {
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.respond(&request).await) }
        });
        // `pipeline_flush` stays off: it makes hyper copy every body.
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_headers(32)
            .serve_connection(io, service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a bulk connection ended");
        }
    }

    async fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        match self.answer(request).await {
            Ok(response) => response,
            Err((status, retry, why)) => {
                count(&self.counters.failures);
                let mut response = Response::new(Full::from(why));
                *response.status_mut() = status;
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
                if let Some(retry) = retry {
                    response.headers_mut().insert(RETRY_AFTER, retry.as_secs().max(1).into());
                }
                response
            }
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Result<Response<Full<Bytes>>, Refused> {
        let refuse = |status, why: &str| (status, None, why.to_owned());
        if request.method() != Method::GET {
            return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET"));
        }
        let key =
            key_of(request.uri().path()).ok_or_else(|| refuse(StatusCode::NOT_FOUND, "no such path"))?;
        let ticket = ticket_of(request).ok_or_else(|| refuse(StatusCode::UNAUTHORIZED, "no ticket"))?;
        let lease = self.tickets.check(&key, &ticket, unix_now()).map_err(|error| match error {
            PartError::Gone => refuse(StatusCode::GONE, "the ticket has expired"),
            other => refuse(StatusCode::FORBIDDEN, &other.to_string()),
        })?;
        let (start, end) = range_of(request)
            .ok_or_else(|| refuse(StatusCode::RANGE_NOT_SATISFIABLE, "one range, from and to"))?;
        let Ok(permit) = Arc::clone(&self.answers).try_acquire_owned() else {
            return Err(read_refused(ReadPart::Busy { retry: Duration::from_secs(1) }));
        };
        let bytes = self.source.read(key, lease, start, end - start + 1).await.map_err(read_refused)?;
        if bytes.len() as u64 != end - start + 1 {
            return Err(read_refused(ReadPart::Range));
        }
        self.counters.count_part(bytes.len() as u64);
        let mut response = Response::new(Full::new(Bytes::from_owner(Held { bytes, _permit: permit })));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        // The whole length is not told: a tuple may still be growing.
        let range = HeaderValue::try_from(format!("bytes {start}-{end}/*"))
            .map_err(|_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "range"))?;
        response.headers_mut().insert(CONTENT_RANGE, range);
        Ok(response)
    }
}

type Refused = (StatusCode, Option<Duration>, String);

/// Bytes on their way out: they hold the tuple and a place among the answers.
struct Held {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn read_refused(error: ReadPart) -> Refused {
    let why = error.to_string();
    match error {
        ReadPart::Unknown => (StatusCode::NOT_FOUND, None, why),
        ReadPart::Gone => (StatusCode::GONE, None, why),
        ReadPart::Range => (StatusCode::RANGE_NOT_SATISFIABLE, None, why),
        ReadPart::Busy { retry } => (StatusCode::SERVICE_UNAVAILABLE, Some(retry), why),
    }
}

fn key_of(path: &str) -> Option<SegmentKey> {
    let mut key = [0; 32];
    hex::decode_to_slice(path.strip_prefix("/v1/segments/")?, &mut key).ok()?;
    Some(SegmentKey(key))
}

fn ticket_of(request: &Request<Incoming>) -> Option<Vec<u8>> {
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    hex::decode(value.strip_prefix("Bearer ")?).ok()
}

/// First and last byte of `bytes=a-b`, the one form that is served.
fn range_of(request: &Request<Incoming>) -> Option<(u64, u64)> {
    let value = request.headers().get(RANGE)?.to_str().ok()?;
    let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end && end < u64::MAX).then_some((start, end))
}
