//! A throw-away CA and the certificates of a local fleet, one per role name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Files of one part's identity.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// The CA's certificate, PEM.
    pub ca: PathBuf,
}

/// A CA that lives as long as the fleet's folder.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a CA and writes its certificate to `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let key = KeyPair::generate().context("make the CA's key")?;
        let mut params = CertificateParams::new(Vec::new()).context("describe the CA")?;
        params.distinguished_name.push(rcgen::DnType::CommonName, "hypic local CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).context("sign the CA")?;
        fs::write(dir.join("ca.crt"), certificate.pem()).context("write the CA")?;
        Ok(Self { dir: dir.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Issues the certificate of one role, such as `hypic-agent`.
    pub fn issue(&self, role: &str) -> Result<CertificateFiles> {
        let key = KeyPair::generate().with_context(|| format!("make the key of {role}"))?;
        let mut params =
            CertificateParams::new(vec![role.to_owned()]).with_context(|| format!("describe {role}"))?;
        params.distinguished_name.push(rcgen::DnType::CommonName, role);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign the certificate of {role}"))?;
        let files = CertificateFiles {
            cert: self.dir.join(format!("{role}.crt")),
            key: self.dir.join(format!("{role}.key")),
            ca: self.dir.join("ca.crt"),
        };
        fs::write(&files.cert, certificate.pem()).context("write a certificate")?;
        write_private(&files.key, &key.serialize_pem()).context("write a key")?;
        Ok(files)
    }
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}
