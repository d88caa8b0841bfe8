//! The sending process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures::future::BoxFuture;
use hypic_domain::key::SegmentKey;
use hypic_wire::bulk::{BulkServer, PartSource, ReadPart, ServeLimits, Tickets, unix_now};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{Args, Hello, SOURCES, Variant, key, parts, runtime, security, tuple_bytes};

struct Tuples(Vec<Bytes>);

impl PartSource for Tuples {
    fn read(
        &self,
        key: SegmentKey,
        _lease: u64,
        offset: u64,
        len: u64,
    ) -> BoxFuture<'static, Result<Bytes, ReadPart>> {
        let tuple = self.0[usize::from(key.0[0]) % self.0.len()].clone();
        let (start, end) = (offset as usize, offset.saturating_add(len) as usize);
        Box::pin(async move {
            if end <= tuple.len() { Ok(tuple.slice(start..end)) } else { Err(ReadPart::Range) }
        })
    }
}

pub(super) fn run(variant: Variant, args: &Args) -> anyhow::Result<()> {
    let sources: Vec<Bytes> = (0..SOURCES).map(|source| tuple_bytes(args.layers, source).into()).collect();
    runtime()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let tickets = Arc::new(Tickets::random()?);
        let hour = unix_now() + Duration::from_secs(3600);
        let hello = Hello {
            endpoint: listener.local_addr()?.to_string(),
            tickets: (0..args.segments)
                .map(|segment| {
                    tickets.mint(&key(segment), 0, hour).iter().map(|byte| format!("{byte:02x}")).collect()
                })
                .collect(),
        };
        println!("{}", serde_json::to_string(&hello)?);
        if variant == Variant::Tcp {
            return send_all(&listener, args, &sources).await;
        }
        let security = security(variant, args.certificates.as_deref().unwrap_or(Path::new(".")))?;
        let server = Arc::new(BulkServer::new(Arc::new(Tuples(sources)), tickets, ServeLimits::default()));
        server.serve(listener, security, std::future::pending()).await;
        Ok(())
    })
}

/// The bare socket: every part behind its length, layer by layer.
async fn send_all(listener: &TcpListener, args: &Args, sources: &[Bytes]) -> anyhow::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        stream.read_u8().await?;
        for part in parts(args.layers) {
            for segment in 0..args.segments {
                let tuple = &sources[segment % SOURCES];
                stream.write_u64(part.len).await?;
                stream.write_all(&tuple[part.offset as usize..(part.offset + part.len) as usize]).await?;
            }
        }
    }
}
