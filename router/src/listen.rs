//! Connections of clients: a bounded number, each with a time limit on the heads of its requests.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Bounds of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// How many at once; more wait in the kernel's queue.
    pub most: usize,
    /// A connection that has not sent the head of its next request by then is closed, idle ones too.
    pub head: Duration,
}

/// Serves `routes` until `shutdown`; then accepts no more and lets every connection end its request.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: Connections,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(limits.most));
    let ending = CancellationToken::new();
    let mut open = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = open.join_next() => {}
            Some((stream, place)) = accept(&listener, &places) => {
                let (routes, ending) = (routes.clone(), ending.clone());
                open.spawn(async move {
                    connection(stream, routes, limits.head, &ending).await;
                    drop(place);
                });
            }
        }
    }
    drop(listener);
    ending.cancel();
    while open.join_next().await.is_some() {}
}

/// The next connection and its place; `None` once there can be no more.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) => {
                // Out of file descriptors, mostly: pause, or the loop would spin.
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, routes: Router, head: Duration, ending: &CancellationToken) {
    // Tokens are small: waiting to fill a packet would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot turn off Nagle's algorithm");
    }
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = ending.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
