//! One connection to a sender: asks for two parts at a time and reads each straight into its own buffer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hypic_domain::tuple::PartSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use xxhash_rust::xxh3::xxh3_64;

use super::PartError;
use super::fetch::{Fetch, Job};
use super::head::{self, HEAD_LIMIT, Head};
use super::queue::Queue;
use crate::address::{HostPort, Resolver};
use crate::tls::{Io, Protocol, Security, ServerRole};

/// A cancelled body is read to its end where less than this is left; else the connection is closed.
const DRAIN: u64 = 1 << 20;
/// Longest body of an answer other than a part.
const ERROR_BODY: u64 = 64 << 10;
/// Connections that may break under one part before its sender counts as unreachable.
const BREAKS: u32 = 3;

/// Opens connections to one sender.
pub(super) struct Dialer {
    pub(super) address: HostPort,
    pub(super) security: Security,
    pub(super) resolver: Resolver,
    pub(super) connect: Duration,
}

impl Dialer {
    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let stream = tokio::time::timeout(self.connect, self.address.connect_bulk(&self.resolver)).await??;
        self.security.open(stream, Protocol::Bulk, ServerRole::Agent).await
    }
}

/// A connection with what was read of it beyond the last answer.
struct Pipe {
    io: Box<dyn Io>,
    ahead: BytesMut,
}

/// What happened to the connection under a part.
enum Fault {
    /// It broke: the part is asked for again.
    Broken(String),
    /// The sender is silent or lies: the part has failed, and the connection with it.
    Fatal(PartError),
}

/// Works off the queue until it is closed.
pub(super) async fn work(dialer: Arc<Dialer>, queue: Arc<Queue>) {
    let mut pipe: Option<Pipe> = None;
    // Asked for on `pipe` and not yet answered: one, and one ahead of it.
    let mut current: Option<Job> = None;
    loop {
        let job = match current.take() {
            Some(job) => job,
            None => {
                let Some(job) = queue.take().await else { return };
                match ask(&dialer, &queue, &mut pipe, job).await {
                    Some(job) => job,
                    None => continue,
                }
            }
        };
        if pipe.is_some()
            && let Some(next) = queue.take_ahead()
        {
            current = ask(&dialer, &queue, &mut pipe, next).await;
        }
        let Some(open) = &mut pipe else {
            // Asking ahead broke the connection, and `job` was asked for on it.
            requeue(&queue, job, "the connection broke");
            continue;
        };
        match open.answer(&job.fetch, &job.spec).await {
            Ok((outcome, keep)) => {
                job.finish(outcome);
                if !keep {
                    pipe = None;
                }
            }
            Err(fault) => {
                pipe = None;
                match fault {
                    Fault::Broken(why) => requeue(&queue, job, &why),
                    Fault::Fatal(error) => job.finish(Err(error)),
                }
            }
        }
        if pipe.is_none()
            && let Some(next) = current.take()
        {
            queue.push([next]);
        }
    }
}

/// Sends the request of a part, on a new connection where there is none. `None` when the part was dealt with
/// otherwise.
async fn ask(dialer: &Dialer, queue: &Queue, pipe: &mut Option<Pipe>, job: Job) -> Option<Job> {
    if job.fetch.cancelled.is_cancelled() {
        job.finish(Err(PartError::Cancelled));
        return None;
    }
    let open = match pipe {
        Some(open) => open,
        None => match dialer.dial().await {
            Ok(io) => pipe.insert(Pipe { io, ahead: BytesMut::with_capacity(HEAD_LIMIT) }),
            Err(error) => {
                // Whoever waits behind it would wait for the same time-out in turn.
                for job in std::iter::once(job).chain(queue.take_all()) {
                    job.finish(Err(PartError::Unreachable { why: error.to_string() }));
                }
                return None;
            }
        },
    };
    match open.send(head::request(&job).as_bytes(), job.fetch.stall).await {
        Ok(()) => Some(job),
        Err(error) => {
            *pipe = None;
            requeue(queue, job, &error.to_string());
            None
        }
    }
}

fn requeue(queue: &Queue, mut job: Job, why: &str) {
    job.broken += 1;
    if job.broken < BREAKS {
        queue.push([job]);
    } else {
        job.finish(Err(PartError::Unreachable { why: why.to_owned() }));
    }
}

impl Pipe {
    async fn send(&mut self, request: &[u8], stall: Duration) -> io::Result<()> {
        tokio::time::timeout(stall, async {
            self.io.write_all(request).await?;
            self.io.flush().await
        })
        .await?
    }

    /// Reads the answer for one part: how the part ended and whether the connection is still good.
    async fn answer(
        &mut self,
        fetch: &Fetch,
        spec: &PartSpec,
    ) -> Result<(Result<Bytes, PartError>, bool), Fault> {
        let head = self.head(fetch.stall).await?;
        if head.status != 206 {
            let keep = head.keep_alive && head.body <= ERROR_BODY;
            let said = if keep { self.body(fetch, head.body, u64::MAX).await?.0 } else { Bytes::new() };
            return Ok((Err(refusal(&head, &said)), keep));
        }
        if head.body != spec.len || head.start != Some(spec.offset) {
            return Err(Fault::Fatal(PartError::Malformed { why: "another range than was asked for" }));
        }
        let (bytes, whole) = self.body(fetch, head.body, DRAIN).await?;
        if !whole {
            return Ok((Err(PartError::Cancelled), false));
        }
        if fetch.cancelled.is_cancelled() {
            return Ok((Err(PartError::Cancelled), head.keep_alive));
        }
        // One pass over the whole part: cheaper than hashing piece by piece while reading.
        let outcome = if xxh3_64(&bytes) == spec.sum { Ok(bytes) } else { Err(PartError::Checksum) };
        Ok((outcome, head.keep_alive))
    }

    async fn head(&mut self, stall: Duration) -> Result<Head, Fault> {
        loop {
            if let Some(head) = head::read(&self.ahead).map_err(Fault::Fatal)? {
                self.ahead.advance(head.len);
                return Ok(head);
            }
            self.ahead.reserve(HEAD_LIMIT - self.ahead.len());
            // `head::read` refuses a partial head of `HEAD_LIMIT` bytes, so there is room left.
            let left = HEAD_LIMIT - self.ahead.len();
            let mut room = (&mut self.ahead).limit(left);
            progress(self.io.read_buf(&mut room), stall).await?;
        }
    }

    /// Reads `len` bytes straight into a buffer of that size. `false` when the fetch was cancelled with more
    /// than `drain` bytes to go.
    async fn body(&mut self, fetch: &Fetch, len: u64, drain: u64) -> Result<(Bytes, bool), Fault> {
        let Ok(len) = usize::try_from(len) else {
            return Err(Fault::Fatal(PartError::Malformed { why: "content-length" }));
        };
        let mut buffer = BytesMut::with_capacity(len);
        buffer.put(self.ahead.split_to(len.min(self.ahead.len())));
        while buffer.len() < len {
            let left = len - buffer.len();
            let mut room = (&mut buffer).limit(left);
            let read = progress(self.io.read_buf(&mut room), fetch.stall);
            if left as u64 <= drain {
                read.await?;
            } else {
                tokio::select! {
                    read = read => { read?; }
                    () = fetch.cancelled.cancelled() => return Ok((Bytes::new(), false)),
                }
            }
        }
        Ok((buffer.freeze(), true))
    }
}

/// A read that must bring something within the deadline.
async fn progress(read: impl Future<Output = io::Result<usize>>, stall: Duration) -> Result<(), Fault> {
    match tokio::time::timeout(stall, read).await {
        Err(_) => Err(Fault::Fatal(PartError::Stalled)),
        Ok(Err(error)) => Err(Fault::Broken(error.to_string())),
        Ok(Ok(0)) => Err(Fault::Broken("the sender closed the connection".to_owned())),
        Ok(Ok(_)) => Ok(()),
    }
}

fn refusal(head: &Head, said: &[u8]) -> PartError {
    match head.status {
        404 | 410 => PartError::Gone,
        429 | 503 => PartError::Busy { retry: head.retry.unwrap_or(Duration::from_secs(1)) },
        status => {
            let said = String::from_utf8_lossy(&said[..said.len().min(256)]);
            PartError::Refused { why: format!("status {status}: {said}") }
        }
    }
}
