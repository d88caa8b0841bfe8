//! A cluster's Secrets: its own CA, the certificates of its parts, and the key that scopes tenants. Each is made once
//! and kept; certificates are renewed in time, and agents and routers read them anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use hypic_wire::tls::{Security, TlsPem};

use crate::pki::{Authority, PkiError, is_due, stamp};
use crate::plan::names::{MANAGER, Names};

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
    /// A key or certificate.
    #[error("certificates")]
    Pki(#[from] PkiError),
    /// The operator's own identity does not load.
    #[error("the operator's certificate")]
    Load(#[from] hypic_wire::Error),
}

/// The operator's identity towards one cluster's parts.
#[derive(Clone)]
pub struct Identity {
    /// Which CA it is of.
    pub fingerprint: String,
    /// For connections.
    pub security: Security,
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
    Ok(Arc::new(Identity { fingerprint, security: pem.load()?, not_after: leaf.not_after }))
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
            && text(&secret, "tls.key").is_some()
            && text(&secret, "ca.crt").is_some()
            && text(&secret, "tls.crt").is_some()
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
            .is_some_and(|secret| text(&secret, "secret").is_some_and(|text| text.len() == 64))
        {
            return Ok(());
        }
        let key: [u8; 32] = rand::random();
        self.put(&name, "Opaque", &[("secret", &hex::encode(key))], &[]).await
    }

    async fn get(&self, name: &str) -> Result<Option<Secret>, SecretsError> {
        self.api.get_opt(name).await.map_err(|source| api_error(name, source))
    }

    async fn put(
        &self,
        name: &str,
        kind: &str,
        data: &[(&str, &str)],
        notes: &[(&str, String)],
    ) -> Result<(), SecretsError> {
        let data: BTreeMap<&str, ByteString> =
            data.iter().map(|(key, text)| (*key, ByteString(text.as_bytes().to_vec()))).collect();
        let mut metadata = self.names.metadata(name, "secret", None);
        for (key, note) in notes {
            metadata["annotations"][key] = json!(note);
        }
        let secret: Value =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data});
        let params = PatchParams::apply(MANAGER).force();
        self.api
            .patch(name, &params, &Patch::Apply(&secret))
            .await
            .map_err(|source| api_error(name, source))?;
        tracing::info!(secret = name, namespace = self.names.namespace, "made");
        Ok(())
    }
}

fn api_error(name: &str, source: kube::Error) -> SecretsError {
    SecretsError::Api { name: name.to_owned(), source: Box::new(source) }
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
