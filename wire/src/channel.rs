//! Connections to agents and routers: one HTTP/2 channel each, opened when first used and kept.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::Error;
use crate::address::{HostPort, Resolver};
use crate::proto::agent_client::AgentClient;
use crate::proto::fleet_client::FleetClient;
use crate::proto::index_client::IndexClient;
use crate::tls::{Protocol, Security, ServerRole};

/// Largest message, on both sides of every service. A prompt of a million tokens takes 5 MiB; what can grow
/// further (index dumps) is sent in pages.
pub const MESSAGE_LIMIT: usize = 64 << 20;
/// Bytes in flight towards a server, per stream and per connection.
pub(crate) const WINDOW: u32 = 1 << 20;
/// Bytes in flight that a client takes per stream: a slow reader holds no more than this.
const STREAM_WINDOW: u32 = 64 << 10;
/// The same over all streams of a connection: far more, or a few slow readers would stop all the others.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Idle connections are probed this often, so that a dead peer is noticed and an idle stream is kept.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// A probe that is not answered by then ends the connection.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that does not take a connection by then is away.
const CONNECT: Duration = Duration::from_secs(2);

/// Channels by address.
pub struct Channels {
    security: Security,
    resolver: Resolver,
    open: Mutex<HashMap<(String, ServerRole), Channel>>,
}

impl Channels {
    /// No channel yet.
    pub fn new(security: Security) -> Self {
        Self::resolving(security, Resolver::system())
    }

    pub(crate) fn resolving(security: Security, resolver: Resolver) -> Self {
        Self { security, resolver, open: Mutex::default() }
    }

    /// The agent service at `host:port`.
    ///
    /// # Errors
    /// When the address does not parse. Connecting happens at the first call.
    pub fn agent(&self, address: &str) -> Result<AgentClient<Channel>, Error> {
        Ok(AgentClient::new(self.channel(address, ServerRole::Agent)?)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT))
    }

    /// The index service at `host:port`.
    ///
    /// # Errors
    /// As [`Self::agent`].
    pub fn index(&self, address: &str) -> Result<IndexClient<Channel>, Error> {
        Ok(IndexClient::new(self.channel(address, ServerRole::Agent)?)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT))
    }

    /// The fleet service of an agent or a router at `host:port`.
    ///
    /// # Errors
    /// As [`Self::agent`].
    pub fn fleet(&self, address: &str, role: ServerRole) -> Result<FleetClient<Channel>, Error> {
        Ok(FleetClient::new(self.channel(address, role)?)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT))
    }

    /// Forgets channels to addresses that `keep` refuses: peers that left the topology.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|(address, _), _| keep(address));
    }

    fn channel(&self, address: &str, role: ServerRole) -> Result<Channel, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(&(address.to_owned(), role)) {
            return Ok(channel.clone());
        }
        let channel = connect_lazily(address.parse()?, role, self.security.clone(), self.resolver.clone());
        open.insert((address.to_owned(), role), channel.clone());
        Ok(channel)
    }
}

/// The URI carries the role and no host: the address is dialled as it stands in the topology, so no form of
/// it (IPv6, zones) has to survive a URI, and certificates are checked against the role.
fn connect_lazily(address: HostPort, role: ServerRole, security: Security, resolver: Resolver) -> Channel {
    let uri = match role {
        ServerRole::Agent => Uri::from_static("http://hypic-agent"),
        ServerRole::Router => Uri::from_static("http://hypic-router"),
    };
    let endpoint = Endpoint::from(uri)
        .connect_timeout(CONNECT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (address, security, resolver) = (address.clone(), security.clone(), resolver.clone());
        async move {
            let stream = address.connect(&resolver).await?;
            security.open(stream, Protocol::Control, role).await.map(TokioIo::new)
        }
    }))
}
