use std::io;
use std::path::PathBuf;

use rustls_pki_types::pem;

/// What can go wrong between processes, by action. Outcomes that a peer must act on are
/// [`crate::status::Refusal`] (control) and [`crate::bulk::PartError`] (bulk).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field that must be there is absent.
    #[error("field '{field}' is missing")]
    FindField {
        /// Which.
        field: &'static str,
    },
    /// A digest is not 32 bytes long.
    #[error("field '{field}' has {len} bytes instead of 32")]
    ReadDigest {
        /// Which.
        field: &'static str,
        /// Its length.
        len: usize,
    },
    /// A name or an enum value that this version does not know.
    #[error("field '{field}' has the unknown value '{value}'")]
    ReadName {
        /// Which.
        field: &'static str,
        /// What stood there.
        value: String,
    },
    /// A number outside its range.
    #[error("field '{field}' is out of range: {value}")]
    ReadNumber {
        /// Which.
        field: &'static str,
        /// What stood there.
        value: String,
    },
    /// A field that carries JSON does not parse.
    #[error("field '{field}' is not the JSON it should be")]
    ReadJson {
        /// Which.
        field: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A value could not be written as JSON.
    #[error("field '{field}' cannot be written as JSON")]
    WriteJson {
        /// Which.
        field: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// Certificates or a key that do not parse.
    #[error("read PEM '{path}'")]
    ReadPem {
        /// The file, or the field.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// No certificate where there should be one.
    #[error("'{path}' holds no certificate")]
    FindCertificate {
        /// The file, or the field.
        path: PathBuf,
    },
    /// Certificate, key and CA do not make a configuration.
    #[error("make a TLS configuration")]
    BuildTls {
        /// Why.
        source: rustls::Error,
    },
    /// The CA does not make a verifier of clients.
    #[error("make a verifier of client certificates")]
    BuildVerifier {
        /// Why.
        source: rustls::server::VerifierBuilderError,
    },
    /// A topology file that cannot be read.
    #[error("cannot read the topology file '{}'", path.display())]
    ReadTopology {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A topology file that is none.
    #[error("'{}' is no valid topology file", path.display())]
    ParseTopology {
        /// Which.
        path: PathBuf,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A topology file that says something impossible.
    #[error("the topology file '{}' cannot be gone by", path.display())]
    CheckTopology {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: Box<Self>,
    },
    /// Neither a whole identity nor the wish for none.
    #[error("give --tls-cert, --tls-key and --tls-ca together, or --plain")]
    ChooseSecurity,
    /// The random source of the TLS provider gave nothing.
    #[error("draw a random key")]
    DrawKey,
    /// Not a `host:port`.
    #[error("address '{address}' {why}")]
    ReadAddress {
        /// What stood there.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No listener on that address.
    #[error("listen on '{address}'")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A listener that stopped.
    #[error("serve")]
    Serve {
        /// Why.
        source: tonic::transport::Error,
    },
}
