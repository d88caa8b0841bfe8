//! The serving side of control: limits on every service, TLS handshakes that cannot hold up each other.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::Error;
use crate::channel::{KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, MESSAGE_LIMIT, WINDOW};
use crate::proto::agent_server::{Agent, AgentServer};
use crate::proto::fleet_server::{Fleet, FleetServer};
use crate::proto::index_server::{Index, IndexServer};
use crate::status::Refusal;
use crate::tls::{Io, Peer, Protocol, Security};

/// Handshakes in work at once; more wait in the kernel's queue.
const HANDSHAKES: usize = 64;

/// A call whose answer has not begun by then is ended, whoever keeps it waiting: a caller that says nothing would hold it for
/// ever, and with it a process that is told to end. Askers give up far sooner, and no answer takes so long to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// The agent service with the message limits on.
pub fn agent<T: Agent>(service: T) -> AgentServer<T> {
    AgentServer::new(service)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

/// The index service with the message limits on.
pub fn index<T: Index>(service: T) -> IndexServer<T> {
    IndexServer::new(service)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

/// The fleet service with the message limits on.
pub fn fleet<T: Fleet>(service: T) -> FleetServer<T> {
    FleetServer::new(service)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

/// Lets a call through whose sender may steer the fleet ([`Peer::may_steer`]).
///
/// # Errors
/// [`Refusal::Forbidden`] for everybody else, and for calls that came over no connection of [`serve`].
pub fn check_steers<T>(request: &Request<T>) -> Result<(), Refusal> {
    if request.extensions().get::<Peer>().is_some_and(Peer::may_steer) {
        return Ok(());
    }
    let why = format!("only {} and {} may", crate::tls::OPERATOR, crate::tls::ServerRole::Router.name());
    Err(Refusal::Forbidden { why })
}

/// Serves `routes` until `shutdown`; running calls are finished first. A call whose answer does not begin within ten seconds,
/// its caller's first message included, is cancelled.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    security: Security,
    routes: Routes,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (accepted, incoming) = mpsc::channel(HANDSHAKES);
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(listener, security, accepted));
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .timeout(BEGIN)
        .add_routes(routes)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), shutdown)
        .await
        .map_err(|source| Error::Serve { source })
}

/// Accepts for ever; each handshake is its own task.
async fn accept(listener: TcpListener, security: Security, accepted: mpsc::Sender<io::Result<Accepted>>) {
    let mut handshakes = JoinSet::new();
    loop {
        let accept = async {
            match listener.accept().await {
                Ok((stream, peer)) => Some((stream, peer)),
                Err(error) => {
                    // Out of file descriptors, mostly: pause, or the loop would spin.
                    tracing::warn!(%error, "accept a control connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    None
                }
            }
        };
        tokio::select! {
            connection = accept, if handshakes.len() < HANDSHAKES => {
                let Some((stream, peer)) = connection else { continue };
                let (security, accepted) = (security.clone(), accepted.clone());
                handshakes.spawn(async move {
                    match security.accept(stream, Protocol::Control).await {
                        // The receiver is gone only when the server has stopped.
                        Ok((io, peer)) => drop(accepted.send(Ok(Accepted { io, peer })).await),
                        Err(error) => tracing::debug!(%peer, %error, "refuse a control connection"),
                    }
                });
            }
            Some(_) = handshakes.join_next() => {}
            () = accepted.closed() => return,
        }
    }
}

/// A connection and who is at its other end: tonic puts the [`Peer`] into every request's extensions.
struct Accepted {
    io: Box<dyn Io>,
    peer: Peer,
}

impl Connected for Accepted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(ctx, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(ctx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(ctx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(ctx)
    }
}

#[cfg(test)]
mod tests;
