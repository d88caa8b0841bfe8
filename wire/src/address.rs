//! `host:port` as it stands in the topology, and the sockets made from it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

use crate::Error;

/// Receive buffer of bulk connections. What is in flight is bounded by the requests, so a larger one only
/// moves bytes out of the cache before they are copied.
const RECEIVE_BUFFER: u32 = 1 << 20;

/// Finds the addresses of a name. It is asked for every connection anew: a pod that comes back under its name has
/// another address, and a name that is not known yet may be known at the next try.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Resolve>);

type Resolve = dyn Fn(HostPort) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

impl Resolver {
    /// The one of the machine.
    pub(crate) fn system() -> Self {
        Self::new(|HostPort { host, port }| {
            Box::pin(async move { Ok(lookup_host((host.as_str(), port)).await?.collect()) })
        })
    }

    pub(crate) fn new(
        resolve: impl Fn(HostPort) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(resolve))
    }

    async fn addresses(&self, name: &HostPort) -> io::Result<Vec<SocketAddr>> {
        (self.0)(name.clone()).await
    }
}

/// A host and a port. IPv6 hosts are written in brackets, with a zone where they need one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |why| Error::ReadAddress { address: text.to_owned(), why };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once("]:").ok_or_else(|| refuse("lacks ']:port'"))?;
                let bare = host.split_once('%').map_or(host, |(bare, _zone)| bare);
                bare.parse::<Ipv6Addr>().map_err(|_| refuse("has no IPv6 address in its brackets"))?;
                (host, port)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("lacks ':port'"))?;
                if host.contains(':') {
                    return Err(refuse("is IPv6 without brackets"));
                }
                (host, port)
            }
        };
        let name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(name) {
            return Err(refuse("has no valid host"));
        }
        let port = port.parse().map_err(|_| refuse("has no valid port"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl HostPort {
    /// Listens there. `[::]` falls back to `0.0.0.0` on a machine without IPv6.
    ///
    /// # Errors
    /// When nothing can listen on the address.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        let bound = TcpListener::bind((self.host.as_str(), self.port)).await;
        let bound = match bound {
            Err(_) if self.host.parse() == Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => {
                TcpListener::bind(("0.0.0.0", self.port)).await
            }
            other => other,
        };
        bound.map_err(|source| Error::Listen { address: self.to_string(), source })
    }

    /// Connects for control traffic: small messages, buffers left to the kernel.
    pub(crate) async fn connect(&self, resolver: &Resolver) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&resolver.addresses(self).await?[..]).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects for pulling tensor bytes.
    pub(crate) async fn connect_bulk(&self, resolver: &Resolver) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in resolver.addresses(self).await? {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
            socket.set_nodelay(true)?;
            match socket.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HostPort, Error> {
        text.parse()
    }

    #[test]
    fn every_address_form_reads_and_prints_back() {
        for text in [
            "agent-0.pool:7001",
            "10.0.0.7:1",
            "[fd00::7]:7001",
            "[::ffff:10.0.0.7]:7001",
            "[fe80::1%eth0]:7001",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("[fd00::7]:7001").unwrap().host, "fd00::7");
    }

    #[test]
    fn ipv6_without_brackets_is_refused_by_name() {
        for text in [
            "fd00::7",
            "fd00::7:7001",
            "[fd00::7]",
            "[agent]:7001",
            "agent",
            ":7001",
            "a:0x1",
            "a:70000",
            "a b:1",
        ] {
            assert!(matches!(read(text), Err(Error::ReadAddress { .. })), "{text}");
        }
        assert!(read("fd00::7:7001").unwrap_err().to_string().contains("without brackets"));
    }

    #[tokio::test]
    async fn the_unspecified_address_always_listens() {
        assert!(read("[::]:0").unwrap().listen().await.is_ok());
    }
}
