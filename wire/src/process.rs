//! What the `main` of router and agent have in common: flags of their identity, and when to stop.

use std::future::Future;
use std::io;
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::Error;
use crate::tls::{Security, TlsFiles};

/// Identity of this process.
#[derive(Clone, Debug, Args)]
pub struct TlsArgs {
    /// Certificate chain, PEM.
    #[arg(long, env = "HYPIC_TLS_CERT", required_unless_present = "plain")]
    tls_cert: Option<PathBuf>,
    /// Private key, PEM.
    #[arg(long, env = "HYPIC_TLS_KEY", required_unless_present = "plain")]
    tls_key: Option<PathBuf>,
    /// Authorities of the fleet, PEM; several while one is replaced.
    #[arg(long, env = "HYPIC_TLS_CA", required_unless_present = "plain")]
    tls_ca: Option<PathBuf>,
    /// No TLS between the parts: for networks that are closed or encrypted already.
    #[arg(long, env = "HYPIC_PLAIN", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    plain: bool,
}

impl TlsArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that is not what it should be, or flags that are only half there.
    pub fn security(self) -> Result<Security, Error> {
        match (self.tls_cert, self.tls_key, self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => TlsFiles { cert, key, ca }.load(),
            _ if self.plain => Ok(Security::Plain),
            _ => Err(Error::ChooseSecurity),
        }
    }
}

/// Resolves at SIGTERM or SIGINT. Signals are heard from this call on.
///
/// # Errors
/// When no handler can be installed.
pub fn stopped() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
