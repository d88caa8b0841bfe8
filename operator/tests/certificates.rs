//! Certificates of a fleet's own authority, where they are checked: in handshakes between its parts.
#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

use std::time::{Duration, SystemTime};

use hypic_domain::topology::Topology;
use hypic_operator::pki::{Authority, Leaf};
use hypic_wire::channel::Channels;
use hypic_wire::proto;
use hypic_wire::proto::fleet_server::Fleet;
use hypic_wire::serve::{check_steers, fleet, serve};
use hypic_wire::steer::SteerError;
use hypic_wire::tls::{Security, ServerRole, TlsPem};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

const DAY: Duration = Duration::from_secs(86_400);

/// Lets whoever may steer push.
struct Part;

#[tonic::async_trait]
impl Fleet for Part {
    async fn push_topology(
        &self,
        request: Request<proto::PushTopologyRequest>,
    ) -> Result<Response<proto::PushTopologyResponse>, Status> {
        check_steers(&request)?;
        Ok(Response::new(proto::PushTopologyResponse::default()))
    }

    async fn read_counters(
        &self,
        _: Request<proto::ReadCountersRequest>,
    ) -> Result<Response<proto::ReadCountersResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

/// The identity of a role, issued at `now` by `authority`; peers may be of any of `trusted`.
fn identity(authority: &Authority, role: &str, now: SystemTime, trusted: &[&Authority]) -> Security {
    let Leaf { cert_pem, key_pem, .. } = authority.issue(role, now).unwrap();
    let ca = trusted.iter().map(|authority| authority.cert_pem.as_str()).collect();
    TlsPem { cert: cert_pem, key: key_pem, ca }.load().unwrap()
}

async fn push(server: Security, role: ServerRole, client: Security) -> Result<(), SteerError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(serve(listener, server, Routes::new(fleet(Part)), std::future::pending()));
    let pushed = Channels::new(client).push_topology(&address, role, &Topology::default()).await;
    serving.abort();
    pushed.map(drop)
}

#[tokio::test]
async fn parts_of_one_fleet_talk_by_role_and_parts_of_another_do_not() {
    let now = SystemTime::now();
    let (ours, theirs) = (Authority::create(now).unwrap(), Authority::create(now).unwrap());
    let of = |authority, role| identity(authority, role, now, &[authority]);
    for (role, name) in [(ServerRole::Agent, "hypic-agent"), (ServerRole::Router, "hypic-router")] {
        push(of(&ours, name), role, of(&ours, "hypic-operator")).await.unwrap();
        push(of(&ours, name), role, of(&theirs, "hypic-operator")).await.unwrap_err();
        push(of(&theirs, name), role, of(&ours, "hypic-operator")).await.unwrap_err();
    }
    push(of(&ours, "hypic-router"), ServerRole::Agent, of(&ours, "hypic-operator")).await.unwrap_err();
    let agent =
        push(of(&ours, "hypic-agent"), ServerRole::Agent, of(&ours, "hypic-agent")).await.unwrap_err();
    assert!(matches!(agent, SteerError::Call { source, .. } if source.code() == Code::PermissionDenied));
}

#[tokio::test]
async fn an_authority_that_was_stored_signs_as_before() {
    let now = SystemTime::now();
    let made = Authority::create(now).unwrap();
    let (cert_pem, key_pem) = (made.cert_pem.clone(), made.key_pem.clone());
    let read = Authority { cert_pem, key_pem, not_after: made.not_after };
    let of = |authority: &Authority, role| identity(authority, role, now, &[&made]);
    push(of(&made, "hypic-agent"), ServerRole::Agent, of(&read, "hypic-operator")).await.unwrap();
}

#[tokio::test]
async fn two_authorities_overlap_where_both_are_trusted() {
    let now = SystemTime::now();
    let (old, new) = (Authority::create(now).unwrap(), Authority::create(now).unwrap());
    let of = |authority, role| identity(authority, role, now, &[&new, &old]);
    push(of(&old, "hypic-agent"), ServerRole::Agent, of(&new, "hypic-operator")).await.unwrap();
    push(of(&new, "hypic-agent"), ServerRole::Agent, of(&old, "hypic-operator")).await.unwrap();
}

#[tokio::test]
async fn certificates_hold_from_before_they_were_made_until_they_end() {
    let now = SystemTime::now();
    let authority = Authority::create(now - 800 * DAY).unwrap();
    let of = |role, made| identity(&authority, role, made, &[&authority]);
    let minutes = Duration::from_secs(60);
    let agent = || of("hypic-agent", now);
    push(agent(), ServerRole::Agent, of("hypic-operator", now + 4 * minutes)).await.unwrap();
    push(agent(), ServerRole::Agent, of("hypic-operator", now + 6 * minutes)).await.unwrap_err();
    push(agent(), ServerRole::Agent, of("hypic-operator", now - 364 * DAY)).await.unwrap();
    push(agent(), ServerRole::Agent, of("hypic-operator", now - 366 * DAY)).await.unwrap_err();
}

#[test]
fn what_a_peer_would_refuse_is_found_before_it_is_used() {
    let now = SystemTime::now();
    let (ours, theirs) = (Authority::create(now).unwrap(), Authority::create(now).unwrap());
    let of = |authority: &Authority| {
        let Leaf { cert_pem, key_pem, .. } = authority.issue("hypic-agent", now).unwrap();
        TlsPem { cert: cert_pem, key: key_pem, ca: ours.cert_pem.clone() }
    };
    of(&ours).verify("hypic-agent").unwrap();
    of(&ours).verify("hypic-router").unwrap_err();
    of(&theirs).verify("hypic-agent").unwrap_err();
    // A CA with the key of another one signs what nobody takes.
    let pair = |key: &Authority| {
        let (cert, ca) = (ours.cert_pem.clone(), ours.cert_pem.clone());
        TlsPem { cert, key: key.key_pem.clone(), ca }.load().is_ok()
    };
    assert!(pair(&ours));
    assert!(!pair(&theirs));
}
