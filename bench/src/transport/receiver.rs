//! The receiving process: pulls, times, and keeps the latest parts so that memory is not reused at once.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bytes::{BufMut, Bytes, BytesMut};
use hypic_domain::tuple::PartSpec;
use hypic_domain::unit;
use hypic_wire::bulk::{Budget, HttpPull, OnPart, PullFrom, PullLimits, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xxhash_rust::xxh3::xxh3_64;

use super::{Args, Hello, Run, SOURCES, Variant, cpu_seconds, key, parts, runtime, security, tuple_bytes};

/// Parts kept: far over the cache.
const KEPT: usize = 48;

/// What has arrived.
struct Arrived {
    begun: Instant,
    kept: VecDeque<Bytes>,
    /// Parts of layer 0 to come.
    first_left: usize,
    first: Duration,
}

impl Arrived {
    fn take(&mut self, layer: u16, bytes: Bytes) {
        if layer == 0 {
            self.first_left -= 1;
            if self.first_left == 0 {
                self.first = self.begun.elapsed();
            }
        }
        self.kept.push_back(bytes);
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }
}

pub(super) fn run(
    variant: Variant,
    args: &Args,
    hello: &Hello,
    certificates: &Path,
    sender: u32,
) -> anyhow::Result<Run> {
    let specs = specs_of_sources(args);
    let total: u64 = specs[0].iter().map(|part| part.len).sum::<u64>() * args.segments as u64;
    let pull = HttpPull::new(security(variant, certificates)?, PullLimits::default());
    // Inside the runtime while its threads live: their times are read from outside.
    runtime()?.block_on(async {
        let (sender_before, receiver_before) = (cpu_seconds(sender)?, cpu_seconds(std::process::id())?);
        let begun = Instant::now();
        let arrived =
            Arrived { begun, kept: VecDeque::new(), first_left: args.segments, first: Duration::default() };
        let arrived = Arc::new(Mutex::new(arrived));
        match variant {
            Variant::Tcp => receive_all(hello, args, &arrived).await?,
            Variant::Plain | Variant::Tls => pull_all(&pull, hello, args, &specs, &arrived).await?,
        }
        let seconds = begun.elapsed().as_secs_f64();
        let gigabytes = total as f64 / 1e9;
        let first = arrived.lock().unwrap_or_else(PoisonError::into_inner).first;
        Ok(Run {
            gb_per_s: gigabytes / seconds,
            sender_cpu_s_per_gb: (cpu_seconds(sender)? - sender_before) / gigabytes,
            receiver_cpu_s_per_gb: (cpu_seconds(std::process::id())? - receiver_before) / gigabytes,
            first_layer_ms: first.as_secs_f64() * 1e3,
        })
    })
}

fn specs_of_sources(args: &Args) -> Vec<Vec<PartSpec>> {
    let specs_of = |source| {
        let bytes = tuple_bytes(args.layers, source);
        let sum = |part: &PartSpec| xxh3_64(&bytes[part.offset as usize..(part.offset + part.len) as usize]);
        parts(args.layers).into_iter().map(|part| PartSpec { sum: sum(&part), ..part }).collect()
    };
    (0..SOURCES).map(specs_of).collect()
}

async fn pull_all(
    pull: &HttpPull,
    hello: &Hello,
    args: &Args,
    specs: &[Vec<PartSpec>],
    arrived: &Arc<Mutex<Arrived>>,
) -> anyhow::Result<()> {
    let budget = Budget::new(unit::Bytes(8 << 30));
    let mut transfers = Vec::new();
    for segment in 0..args.segments {
        let ticket = hello.tickets.get(segment).context("find a ticket")?;
        let from = PullFrom {
            endpoint: hello.endpoint.clone(),
            key: key(segment),
            ticket: from_hex(ticket)?.into(),
        };
        let parts = specs[segment % SOURCES].clone();
        let layers: Vec<u16> = parts.iter().map(|part| part.layer).collect();
        let lease = budget.lease(unit::Bytes(parts.iter().map(|part| part.len).sum())).await;
        let arrived = Arc::clone(arrived);
        let on_part: OnPart = Arc::new(move |index, outcome| {
            if let Ok(bytes) = outcome {
                arrived.lock().unwrap_or_else(PoisonError::into_inner).take(layers[index], bytes);
            }
        });
        transfers.push(pull.fetch(from, parts, lease, Duration::from_secs(2), on_part));
    }
    for transfer in transfers {
        transfer.quiesce().await.1.map_err(|error| anyhow!(error).context("pull a segment"))?;
    }
    Ok(())
}

async fn receive_all(hello: &Hello, args: &Args, arrived: &Mutex<Arrived>) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(&hello.endpoint).await.context("connect")?;
    stream.write_u8(1).await?;
    for layer in 0..args.layers {
        for _ in 0..args.segments {
            let len = usize::try_from(stream.read_u64().await?)?;
            let mut buffer = BytesMut::with_capacity(len);
            while buffer.len() < len {
                let left = len - buffer.len();
                let read = stream.read_buf(&mut (&mut buffer).limit(left)).await?;
                anyhow::ensure!(read > 0, "the sender hung up");
            }
            arrived.lock().unwrap_or_else(PoisonError::into_inner).take(layer, buffer.freeze());
        }
    }
    Ok(())
}

fn from_hex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = |at| text.get(at..at + 2).context("read a ticket");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}
