//! Who may talk to whom: TLS 1.3 with certificates on both sides, for gRPC and bulk alike.
//!
//! A certificate names a *role* (`hypic-agent`, `hypic-router`, `hypic-operator`) as its DNS name, never a host:
//! pods come and go, and addresses from the topology must not have to be in certificates.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Error;
use crate::follow::Live;

/// rustls reads 4 KiB at a time from its socket; behind this buffer its CPU cost per byte falls by a third.
const READ_BUFFER: usize = 256 << 10;
/// How much plain text rustls takes before it must be flushed; the measured optimum.
const WRITE_BUFFER: usize = 256 << 10;
/// A peer that has not finished its handshake by then is dropped.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// A connection, encrypted or not.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Part of the fleet that a server certificate speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerRole {
    /// A node-agent, gRPC and bulk.
    Agent,
    /// A router.
    Router,
}

impl ServerRole {
    /// The DNS name in the certificate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "hypic-agent",
            Self::Router => "hypic-router",
        }
    }
}

/// The DNS name of whoever steers the fleet. It serves nothing here, so no [`ServerRole`] stands for it.
pub const OPERATOR: &str = "hypic-operator";

/// Who is at the other end of a connection that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Not known: the fleet runs without TLS, and everybody may do everything.
    Plain,
    /// Whose certificate has these names, of the ones that mean something here.
    Named(Vec<&'static str>),
}

impl Peer {
    /// Whether it may push topologies and read counters: the operator, and the router's identity for fleets that
    /// have no operator. An agent may not: it runs the code nearest to what clients send.
    pub fn may_steer(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Named(names) => {
                names.iter().any(|name| [OPERATOR, ServerRole::Router.name()].contains(name))
            }
        }
    }

    fn of(certificate: Option<&CertificateDer<'_>>) -> Self {
        let parsed = certificate.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
        let has = |name: &&'static str| {
            let (Some(parsed), Ok(server)) = (&parsed, ServerName::try_from(*name)) else { return false };
            verify_server_name(parsed, &server).is_ok()
        };
        let known = [OPERATOR, ServerRole::Router.name(), ServerRole::Agent.name()];
        Self::Named(known.into_iter().filter(has).collect())
    }
}

/// What is spoken inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2, for gRPC.
    Control,
    /// HTTP/1.1, for tensor bytes.
    Bulk,
}

/// Where a process finds its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM chain of this process, leaf first.
    pub cert: PathBuf,
    /// PEM key of the leaf.
    pub key: PathBuf,
    /// PEM bundle of the authorities that peers may be signed by; several while one is replaced.
    pub ca: PathBuf,
}

/// What [`TlsFiles`] hold, for a process that has it from elsewhere.
#[derive(Clone)]
pub struct TlsPem {
    /// PEM chain of this process, leaf first.
    pub cert: String,
    /// PEM key of the leaf. Nothing prints it.
    pub key: String,
    /// PEM bundle of the authorities that peers may be signed by.
    pub ca: String,
}

/// How connections are protected.
#[derive(Clone)]
pub enum Security {
    /// Not at all: only by an explicit flag.
    Plain,
    /// TLS 1.3, both sides known.
    Tls(Arc<Live<TlsContext, Error>>),
}

/// Loaded certificates. Connections keep the ones that they began with.
pub struct TlsContext {
    control: (Arc<ServerConfig>, Arc<ClientConfig>),
    bulk: (Arc<ServerConfig>, Arc<ClientConfig>),
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that is missing, is not PEM, or does not fit the others.
    pub fn load(&self) -> Result<Security, Error> {
        let files = self.clone();
        let paths = vec![self.cert.clone(), self.key.clone(), self.ca.clone()];
        Ok(Security::Tls(Arc::new(Live::read(paths, move || files.context())?)))
    }

    fn context(&self) -> Result<TlsContext, Error> {
        let read = |path: &Path| {
            fs::read(path)
                .map_err(|error| Error::ReadPem { path: path.to_owned(), source: pem::Error::Io(error) })
        };
        let (cert, key, ca) = (read(&self.cert)?, read(&self.key)?, read(&self.ca)?);
        TlsContext::build((&self.cert, &cert), (&self.key, &key), (&self.ca, &ca))
    }
}

impl TlsPem {
    /// Reads the texts.
    ///
    /// # Errors
    /// As [`TlsFiles::load`], with the field in the file's place.
    pub fn load(self) -> Result<Security, Error> {
        let context = move || {
            let Self { cert, key, ca } = &self;
            let field = Path::new;
            TlsContext::build(
                (field("cert"), cert.as_bytes()),
                (field("key"), key.as_bytes()),
                (field("ca"), ca.as_bytes()),
            )
        };
        Ok(Security::Tls(Arc::new(Live::read(Vec::new(), context)?)))
    }
}

impl TlsPem {
    /// Checks that the certificate is of that role, signed by one of the authorities, and holds now.
    ///
    /// # Errors
    /// What a peer would refuse, or PEM that does not read.
    pub fn verify(&self, role: &str) -> Result<(), Error> {
        let roots = Arc::new(roots((Path::new("ca"), self.ca.as_bytes()))?);
        let chain = read_certificates((Path::new("cert"), self.cert.as_bytes()))?;
        let refuse = |source| Error::BuildTls { source };
        let name =
            ServerName::try_from(role).map_err(|error| refuse(rustls::Error::General(error.to_string())))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(provider()))
            .build()
            .map_err(|source| Error::BuildVerifier { source })?;
        let (leaf, rest) =
            chain.split_first().ok_or_else(|| Error::FindCertificate { path: "cert".into() })?;
        verifier.verify_server_cert(leaf, rest, &name, &[], UnixTime::now()).map(drop).map_err(refuse)
    }
}

/// A name to complain about, and its PEM.
type Pem<'a> = (&'a Path, &'a [u8]);

impl TlsContext {
    fn build(cert: Pem<'_>, key: Pem<'_>, ca: Pem<'_>) -> Result<Self, Error> {
        let provider = Arc::new(provider());
        let roots = Arc::new(roots(ca)?);
        let chain = read_certificates(cert)?;
        let key = PrivateKeyDer::from_pem_slice(key.1)
            .map_err(|source| Error::ReadPem { path: key.0.to_owned(), source })?;

        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|source| Error::BuildVerifier { source })?;

        let make = |protocol: &[u8]| -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), rustls::Error> {
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(Arc::clone(&clients))
                .with_single_cert(chain.clone(), key.clone_key())?;
            server.alpn_protocols = vec![protocol.to_vec()];
            let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])?
                .with_root_certificates(Arc::clone(&roots))
                .with_client_auth_cert(chain.clone(), key.clone_key())?;
            client.alpn_protocols = vec![protocol.to_vec()];
            Ok((Arc::new(server), Arc::new(client)))
        };
        let build = |source| Error::BuildTls { source };
        Ok(Self { control: make(b"h2").map_err(build)?, bulk: make(b"http/1.1").map_err(build)? })
    }

    fn of(&self, protocol: Protocol) -> &(Arc<ServerConfig>, Arc<ClientConfig>) {
        match protocol {
            Protocol::Control => &self.control,
            Protocol::Bulk => &self.bulk,
        }
    }
}

impl Security {
    /// Looks at the files every so often, for ever: new connections are made with what they hold. Files that do
    /// not read, or do not fit each other, change nothing.
    pub async fn follow_files(&self, every: Duration) {
        let Self::Tls(context) = self else { return std::future::pending().await };
        let tell = |read: Result<(), Error>| match read {
            Ok(()) => tracing::info!("new certificates are in use"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, cause, "new certificates cannot be used; the former ones stay");
            }
        };
        context.follow(every, tell).await;
    }

    /// Takes a connection in, within [`HANDSHAKE`].
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        protocol: Protocol,
    ) -> io::Result<(Box<dyn Io>, Peer)> {
        stream.set_nodelay(true)?;
        let Self::Tls(context) = self else { return Ok((Box::new(stream), Peer::Plain)) };
        let acceptor = TlsAcceptor::from(Arc::clone(&context.now().of(protocol).0));
        let handshake = acceptor.accept_with(stream, |tls| tls.set_buffer_limit(Some(WRITE_BUFFER)));
        let stream = tokio::time::timeout(HANDSHAKE, handshake).await??;
        let peer = Peer::of(stream.get_ref().1.peer_certificates().and_then(<[_]>::first));
        Ok((Box::new(stream), peer))
    }

    /// Opens a connection to a server of that role, within [`HANDSHAKE`].
    pub(crate) async fn open(
        &self,
        stream: TcpStream,
        protocol: Protocol,
        role: ServerRole,
    ) -> io::Result<Box<dyn Io>> {
        let Self::Tls(context) = self else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(role.name()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&context.now().of(protocol).1));
        let handshake = connector.connect(name, BufReader::with_capacity(READ_BUFFER, stream));
        Ok(Box::new(tokio::time::timeout(HANDSHAKE, handshake).await??))
    }
}

/// The one provider, AES-128-GCM first: the cheapest suite per byte on every machine with AES instructions.
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    provider
}

/// 32 bytes from the provider's random source.
pub(crate) fn random_key() -> Result<[u8; 32], Error> {
    let mut key = [0; 32];
    provider().secure_random.fill(&mut key).map_err(|_| Error::DrawKey)?;
    Ok(key)
}

fn roots(ca: Pem<'_>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(ca)? {
        roots.add(certificate).map_err(|source| Error::BuildTls { source })?;
    }
    Ok(roots)
}

fn read_certificates((name, pem): Pem<'_>) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = |source| Error::ReadPem { path: name.to_owned(), source };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(read)?;
    if certificates.is_empty() {
        return Err(Error::FindCertificate { path: name.to_owned() });
    }
    Ok(certificates)
}

#[cfg(test)]
pub(crate) mod tests;
