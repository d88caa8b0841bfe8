//! A cluster's Secrets: its own CA, the certificates of its parts, and the key that scopes tenants. Each is made once
//! and kept; certificates are renewed in time, and agents and routers read them anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use hypic_wire::channel::Channels;
use hypic_wire::tls::TlsPem;

use crate::fault::{Fault, chain, of_refusal, taken};
use crate::pki::{Authority, PkiError, is_due, stamp};
use crate::plan::names::{MANAGER, Names, Whose};

/// Annotation of a certificate's Secret: which CA signed it.
const SIGNED_BY: &str = "hypic.dev/signed-by";
/// Annotation of a certificate's Secret: when it ends, in seconds since 1970.
const NOT_AFTER: &str = "hypic.dev/not-after";

/// Why the Secrets could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The API server.
    #[error("Secret {name}")]
    Api {
        /// Name of the Secret.
        name: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The name is somebody else's.
    #[error("Secret {name} belongs to somebody else")]
    Taken {
        /// Name of the Secret.
        name: String,
    },
    /// A key or certificate.
    #[error("certificates")]
    Pki(#[from] PkiError),
    /// Certificate and key do not read, or do not belong together.
    #[error("a certificate and its key")]
    Load(#[from] hypic_wire::Error),
}

impl SecretsError {
    /// What a person must mend, as a fault of the cluster.
    ///
    /// # Errors
    /// The API server does not answer just now.
    pub fn fault(self, names: &Names) -> Result<Fault, Self> {
        let fault = match self {
            Self::Taken { name } => taken("Secret", &name),
            Self::Api { name, source } => {
                of_refusal("Secret", &name, *source).map_err(|source| api_error(&name, source))?
            }
            Self::Pki(source) => unreadable(names, &source),
            Self::Load(source) => unreadable(names, &source),
        };
        Ok(Fault { blocks: true, ..fault })
    }
}

fn unreadable(names: &Names, error: &dyn std::error::Error) -> Fault {
    let ca = names.child("ca");
    let message = format!("Secret {ca}: {}: delete it, and a new CA and certificates are made", chain(error));
    Fault { reason: "CertificateUnreadable", message, blocks: true }
}

/// The operator's identity towards one cluster's parts.
pub struct Identity {
    /// Connections to the cluster's pods.
    pub channels: Arc<Channels>,
    /// Which CA it is of.
    fingerprint: String,
    not_after: SystemTime,
}

/// Makes what is missing, renews what is old, and gives the operator's identity; `before` is kept where it still
/// fits, so that connections live on.
///
/// # Errors
/// The API server, or a key that cannot be made or read.
pub async fn ensure(
    client: &Client,
    names: &Names,
    before: Option<Arc<Identity>>,
    now: SystemTime,
) -> Result<Arc<Identity>, SecretsError> {
    let secrets = Secrets { api: Api::namespaced(client.clone(), &names.namespace), names };
    let authority = secrets.authority(now).await?;
    let fingerprint = fingerprint(&authority.cert_pem);
    for (part, role) in [("agent-tls", "hypic-agent"), ("router-tls", "hypic-router")] {
        secrets.certificate(part, role, &authority, &fingerprint, now).await?;
    }
    secrets.fleet_key().await?;
    if let Some(before) =
        before.filter(|before| before.fingerprint == fingerprint && !is_due(before.not_after, now))
    {
        return Ok(before);
    }
    let leaf = authority.issue("hypic-operator", now)?;
    let pem = TlsPem { cert: leaf.cert_pem, key: leaf.key_pem, ca: authority.cert_pem };
    let channels = Arc::new(Channels::new(pem.load()?));
    Ok(Arc::new(Identity { channels, fingerprint, not_after: leaf.not_after }))
}

struct Secrets<'a> {
    api: Api<Secret>,
    names: &'a Names,
}

impl Secrets<'_> {
    async fn authority(&self, now: SystemTime) -> Result<Authority, SecretsError> {
        let name = self.names.child("ca");
        if let Some(secret) = self.get(&name).await?
            && let (Some(cert_pem), Some(key_pem)) = (text(&secret, "ca.crt"), text(&secret, "ca.key"))
            && let Some(not_after) = not_after(&secret).filter(|end| *end > now)
        {
            // Certificates that a wrong key signs fit nothing, and nobody would be reached any more.
            let (cert, key, ca) = (cert_pem.clone(), key_pem.clone(), cert_pem.clone());
            TlsPem { cert, key, ca }.load()?;
            return Ok(Authority { cert_pem, key_pem, not_after });
        }
        let authority = Authority::create(now)?;
        let data = [("ca.crt", authority.cert_pem.as_str()), ("ca.key", authority.key_pem.as_str())];
        self.put(&name, "Opaque", &data, &[(NOT_AFTER, stamp(authority.not_after).to_string())]).await?;
        Ok(authority)
    }

    async fn certificate(
        &self,
        part: &str,
        role: &str,
        authority: &Authority,
        fingerprint: &str,
        now: SystemTime,
    ) -> Result<(), SecretsError> {
        let name = self.names.child(part);
        if let Some(secret) = self.get(&name).await?
            && secret.annotations().get(SIGNED_BY).is_some_and(|by| by == fingerprint)
            && let [Some(key), Some(ca), Some(cert)] =
                ["tls.key", "ca.crt", "tls.crt"].map(|key| text(&secret, key))
            && ca == authority.cert_pem
            // One that was damaged would keep every new pod from starting.
            && fits(TlsPem { cert, key, ca }, role)
            // One that ends with its CA cannot be given a longer life.
            && not_after(&secret).is_some_and(|end| !is_due(end, now) || stamp(end) >= stamp(authority.not_after))
        {
            return Ok(());
        }
        let leaf = authority.issue(role, now)?;
        let data = [
            ("tls.crt", leaf.cert_pem.as_str()),
            ("tls.key", leaf.key_pem.as_str()),
            ("ca.crt", authority.cert_pem.as_str()),
        ];
        let notes = [(SIGNED_BY, fingerprint.to_owned()), (NOT_AFTER, stamp(leaf.not_after).to_string())];
        self.put(&name, "kubernetes.io/tls", &data, &notes).await
    }

    /// Scopes of tenants are made with it: another one makes every cached tuple unreachable, no more.
    async fn fleet_key(&self) -> Result<(), SecretsError> {
        let name = self.names.child("fleet");
        if self
            .get(&name)
            .await?
            .and_then(|secret| text(&secret, "secret"))
            .is_some_and(|text| hex::decode(text).is_ok_and(|key| key.len() == 32))
        {
            return Ok(());
        }
        let key: [u8; 32] = rand::random();
        self.put(&name, "Opaque", &[("secret", &hex::encode(key))], &[]).await
    }

    /// A Secret of this cluster. One that an earlier cluster of the name left behind is taken over as it is.
    async fn get(&self, name: &str) -> Result<Option<Secret>, SecretsError> {
        let found = self.api.get_opt(name).await.map_err(|source| api_error(name, source))?;
        let Some(secret) = found else { return Ok(None) };
        match self.names.whose(secret.meta()) {
            Whose::Ours => Ok(Some(secret)),
            Whose::Theirs => Err(SecretsError::Taken { name: name.to_owned() }),
            Whose::Orphan => {
                let kind = secret.type_.as_deref().unwrap_or_default();
                let (data, notes) = (secret.data.clone().unwrap_or_default(), secret.annotations().clone());
                self.apply(name, kind, &data, &notes).await?;
                Ok(Some(secret))
            }
        }
    }

    async fn put(
        &self,
        name: &str,
        kind: &str,
        data: &[(&str, &str)],
        notes: &[(&str, String)],
    ) -> Result<(), SecretsError> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), bytes(text))).collect();
        let notes = notes.iter().map(|(key, note)| ((*key).to_owned(), note.clone())).collect();
        self.apply(name, kind, &data, &notes).await
    }

    async fn apply(
        &self,
        name: &str,
        kind: &str,
        data: &BTreeMap<String, ByteString>,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), SecretsError> {
        let mut metadata = self.names.metadata(name, "secret", None);
        metadata["annotations"] = json!(notes);
        let secret: Value =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data});
        let params = PatchParams::apply(MANAGER).force();
        self.api
            .patch(name, &params, &Patch::Apply(&secret))
            .await
            .map_err(|source| api_error(name, source))?;
        tracing::info!(secret = name, namespace = self.names.namespace, "applied");
        Ok(())
    }
}

fn api_error(name: &str, source: kube::Error) -> SecretsError {
    SecretsError::Api { name: name.to_owned(), source: Box::new(source) }
}

/// Whether a part can serve with it, and is taken for what it is.
fn fits(pem: TlsPem, role: &str) -> bool {
    pem.verify(role).and_then(|()| pem.load()).is_ok()
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

fn not_after(secret: &Secret) -> Option<SystemTime> {
    let seconds = secret.annotations().get(NOT_AFTER)?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn fingerprint(cert_pem: &str) -> String {
    blake3::hash(cert_pem.as_bytes()).to_hex()[..32].to_owned()
}
