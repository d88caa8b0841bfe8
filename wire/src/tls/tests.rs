use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A throw-away authority; certificates are files, as in production.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// Files of a process with that DNS name.
    pub(crate) fn files(&self, name: &str) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |suffix: &str| self.dir.path().join(format!("{name}.{suffix}"));
        fs::write(path("pem"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        TlsFiles { cert: path("pem"), key: path("key"), ca: self.dir.path().join("ca.pem") }
    }

    pub(crate) fn security(&self, name: &str) -> Security {
        self.files(name).load().unwrap()
    }
}

/// One round trip of a byte over a real socket; which side failed first is not told apart.
async fn round_trip(server: Security, client: Security, role: ServerRole) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let (mut io, _peer) = server.accept(stream, Protocol::Bulk).await?;
        let byte = io.read_u8().await?;
        io.write_u8(byte).await?;
        io.flush().await
    });
    let mut io = client.open(TcpStream::connect(address).await?, Protocol::Bulk, role).await?;
    io.write_u8(7).await?;
    io.flush().await?;
    // A plain client reads the server's alert as data.
    if io.read_u8().await? != 7 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    served.await.unwrap()
}

#[tokio::test]
async fn both_sides_must_be_of_the_same_authority() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let agent = || ours.security("hypic-agent");
    round_trip(agent(), agent(), ServerRole::Agent).await.unwrap();
    round_trip(agent(), ours.security("hypic-router"), ServerRole::Agent).await.unwrap();
    assert!(round_trip(agent(), theirs.security("hypic-router"), ServerRole::Agent).await.is_err());
    assert!(round_trip(theirs.security("hypic-agent"), agent(), ServerRole::Agent).await.is_err());
    assert!(round_trip(agent(), Security::Plain, ServerRole::Agent).await.is_err());
    assert!(round_trip(Security::Plain, agent(), ServerRole::Agent).await.is_err());
}

#[tokio::test]
async fn a_server_must_have_the_role_that_is_asked_for() {
    let ours = Authority::new();
    let (agent, router) = (ours.security("hypic-agent"), ours.security("hypic-router"));
    assert!(round_trip(router.clone(), agent.clone(), ServerRole::Agent).await.is_err());
    round_trip(router, agent, ServerRole::Router).await.unwrap();
}

#[tokio::test]
async fn new_files_are_used_for_new_connections_and_broken_ones_change_nothing() {
    const OFTEN: Duration = Duration::from_millis(10);
    let (ours, theirs) = (Authority::new(), Authority::new());
    let files = ours.files("hypic-agent");
    let security = files.load().unwrap();
    let followed = security.clone();
    let following = tokio::spawn(async move { followed.follow_files(OFTEN).await });
    let (one, two) = (ours.security("hypic-router"), theirs.security("hypic-router"));
    let from =
        async |client: &Security| round_trip(security.clone(), client.clone(), ServerRole::Agent).await;
    from(&one).await.unwrap();
    assert!(from(&two).await.is_err());

    fs::write(&files.key, "no key").unwrap();
    tokio::time::sleep(10 * OFTEN).await;
    from(&one).await.unwrap();

    // All signed anew by another authority.
    let new = theirs.files("hypic-agent");
    for (from, to) in [(&new.cert, &files.cert), (&new.key, &files.key), (&new.ca, &files.ca)] {
        fs::copy(from, to).unwrap();
    }
    while from(&two).await.is_err() {
        tokio::time::sleep(OFTEN).await;
    }
    assert!(from(&one).await.is_err());
    following.abort();
}

#[test]
fn a_bad_file_is_named() {
    let ours = Authority::new();
    let good = ours.files("hypic-agent");
    let other = ours.files("hypic-router");
    let missing = TlsFiles { cert: "/nowhere/cert.pem".into(), ..good.clone() };
    assert!(matches!(missing.load(), Err(Error::ReadPem { path, .. }) if path.ends_with("cert.pem")));
    let empty = TlsFiles { ca: good.key.clone(), ..good.clone() };
    assert!(matches!(empty.load(), Err(Error::FindCertificate { path }) if path == good.key));
    let mixed = TlsFiles { key: other.key, ..good };
    assert!(matches!(mixed.load(), Err(Error::BuildTls { .. })));
}

#[tokio::test]
async fn texts_do_as_well_as_files_and_a_bad_one_is_named() {
    let ours = Authority::new();
    let files = ours.files("hypic-operator");
    let read = |path| fs::read_to_string(path).unwrap();
    let texts = TlsPem { cert: read(&files.cert), key: read(&files.key), ca: read(&files.ca) };
    let bad = TlsPem { key: "none".to_owned(), ..texts.clone() };
    assert!(matches!(bad.load(), Err(Error::ReadPem { path, .. }) if path == Path::new("key")));
    round_trip(ours.security("hypic-agent"), texts.load().unwrap(), ServerRole::Agent).await.unwrap();
}
