//! A fleet's own authority: one CA per HypicCluster, and one certificate for each role. A certificate names a role,
//! never a host, so pods may come and go.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Life of a CA.
const AUTHORITY: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Life of a part's certificate.
const LEAF: Duration = Duration::from_secs(365 * 86_400);
/// Clocks of nodes may be behind by this much.
const SKEW: Duration = Duration::from_secs(300);

/// A key or certificate that cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct PkiError {
    what: &'static str,
    source: rcgen::Error,
}

fn failed(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError { what, source }
}

/// A CA with its key.
pub struct Authority {
    /// Its certificate.
    pub cert_pem: String,
    /// Its key.
    pub key_pem: String,
    /// When it ends.
    pub not_after: SystemTime,
}

/// A certificate with its key.
pub struct Leaf {
    /// The certificate.
    pub cert_pem: String,
    /// The key.
    pub key_pem: String,
    /// When it ends.
    pub not_after: SystemTime,
}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Authority")
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Leaf")
    }
}

impl Authority {
    /// A new CA with a new key.
    ///
    /// # Errors
    /// The provider of keys.
    pub fn create(now: SystemTime) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(failed("make the key of a CA"))?;
        let not_after = now + AUTHORITY;
        let mut params = params()?;
        params.not_before = (now - SKEW).into();
        params.not_after = not_after.into();
        let certificate = params.self_signed(&key).map_err(failed("sign a CA"))?;
        Ok(Self { cert_pem: certificate.pem(), key_pem: key.serialize_pem(), not_after })
    }

    /// The certificate of a role, such as `hypic-agent`, with a new key.
    ///
    /// # Errors
    /// A CA's key that cannot be read, or the provider of keys.
    pub fn issue(&self, role: &str, now: SystemTime) -> Result<Leaf, PkiError> {
        let issuer = KeyPair::from_pem(&self.key_pem).map_err(failed("read the key of the CA"))?;
        // Name and key are all that a signature takes from the issuer, and both are known.
        let issuer = Issuer::new(params()?, issuer);
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let not_after = (now + LEAF).min(self.not_after);
        let mut params =
            CertificateParams::new(vec![role.to_owned()]).map_err(failed("name a certificate"))?;
        params.distinguished_name.push(DnType::CommonName, role);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.not_before = (now - SKEW).into();
        params.not_after = not_after.into();
        let certificate = params.signed_by(&key, &issuer).map_err(failed("sign a certificate"))?;
        Ok(Leaf { cert_pem: certificate.pem(), key_pem: key.serialize_pem(), not_after })
    }
}

fn params() -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed("describe a CA"))?;
    params.distinguished_name.push(DnType::CommonName, "hypic fleet CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Whether a certificate of a part that ends then is to be made anew: under a third of its life is left.
pub fn is_due(not_after: SystemTime, now: SystemTime) -> bool {
    not_after.duration_since(now).map_or(true, |left| left < LEAF / 3)
}

/// Whole seconds since 1970, as annotations hold them.
pub fn stamp(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use hypic_wire::tls::TlsPem;

    use super::*;

    #[test]
    fn certificates_load_where_parts_load_them() {
        let now = SystemTime::now();
        let authority = Authority::create(now).expect("a CA");
        for role in ["hypic-agent", "hypic-router", "hypic-operator"] {
            let Leaf { cert_pem, key_pem, not_after } = authority.issue(role, now).expect("a certificate");
            assert!(!is_due(not_after, now));
            let pem = TlsPem { cert: cert_pem, key: key_pem, ca: authority.cert_pem.clone() };
            pem.load().expect("a certificate that fits its key");
        }
    }

    #[test]
    fn a_certificate_is_due_in_the_last_third_of_its_life_and_never_outlives_its_authority() {
        let now = SystemTime::now();
        let authority = Authority::create(now).expect("a CA");
        let end = authority.issue("hypic-agent", now).expect("a certificate").not_after;
        assert!(!is_due(end, now + LEAF / 2));
        assert!(is_due(end, now + LEAF * 7 / 10));
        assert!(is_due(end, now + 2 * LEAF));
        let late =
            authority.issue("hypic-agent", now + AUTHORITY - Duration::from_secs(60)).expect("a certificate");
        assert_eq!(late.not_after, authority.not_after);
    }

    #[test]
    fn keys_are_not_printed() {
        let authority = Authority::create(SystemTime::now()).expect("a CA");
        assert!(!format!("{authority:?}").contains("KEY"));
    }
}
