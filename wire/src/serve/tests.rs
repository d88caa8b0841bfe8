use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::Full;
use hypic_domain::id::Epoch;
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::codec::{Codec, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::address::{HostPort, Resolver};
use crate::channel::Channels;
use crate::proto;
use crate::status::Refusal;
use crate::tls::tests::Authority;
use crate::tls::{OPERATOR, ServerRole};

/// An index whose answers have the asked size.
struct Echo;

#[tonic::async_trait]
impl Index for Echo {
    async fn locate(
        &self,
        request: Request<proto::LocateRequest>,
    ) -> Result<Response<proto::LocateResponse>, Status> {
        let proto::LocateRequest { epoch, keys } = request.into_inner();
        if epoch == 0 {
            return Err(Refusal::WrongOwner { epoch: Epoch(9) }.into());
        }
        if epoch == 1 {
            return Err(Refusal::Failed { why: "é".repeat(100 << 10) }.into());
        }
        let located = keys
            .iter()
            .map(|key| proto::Located { building: hex::encode(key), ..Default::default() })
            .collect();
        Ok(Response::new(proto::LocateResponse { epoch, located }))
    }

    async fn announce(
        &self,
        _: Request<proto::AnnounceRequest>,
    ) -> Result<Response<proto::AnnounceResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn grant(&self, _: Request<proto::GrantRequest>) -> Result<Response<proto::GrantResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

struct Served {
    address: String,
    _stop: oneshot::Sender<()>,
}

async fn serve_echo(host: &str, security: Security) -> Served {
    let listener = HostPort { host: host.to_owned(), port: 0 }.listen().await.unwrap();
    let address = HostPort { host: host.to_owned(), port: listener.local_addr().unwrap().port() }.to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let routes = Routes::new(index(Echo));
    tokio::spawn(serve(listener, security, routes, async move { drop(stopped.await) }));
    Served { address, _stop: stop }
}

fn ask(bytes: usize) -> proto::LocateRequest {
    proto::LocateRequest { epoch: 5, keys: vec![vec![7; bytes]] }
}

#[tokio::test]
async fn messages_over_four_mebibytes_pass_both_ways_over_tls() {
    let authority = Authority::new();
    let served = serve_echo("127.0.0.1", authority.security("hypic-agent")).await;
    let channels = Channels::new(authority.security("hypic-router"));
    let mut index = channels.index(&served.address).unwrap();
    // The question is over the default limit, the answer twice that.
    let answer = index.locate(ask((4 << 20) + 100)).await.unwrap().into_inner();
    assert_eq!(answer.located[0].building.len(), 2 * ((4 << 20) + 100));
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_the_connection_lives() {
    let served = serve_echo("127.0.0.1", Security::Plain).await;
    let channels = Channels::new(Security::Plain);
    let mut index = channels.index(&served.address).unwrap();
    assert!(index.locate(ask(MESSAGE_LIMIT + 1)).await.is_err());
    index.locate(ask(10)).await.unwrap();
}

#[tokio::test]
async fn a_forged_length_is_refused_before_anything_is_allocated() {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(1 << 30);
    let decoder = ProstCodec::<proto::LocateRequest, proto::LocateRequest>::default().decoder();
    let body = Full::new(Bytes::from(body));
    let mut messages = Streaming::new_request(decoder, body, None, Some(MESSAGE_LIMIT));
    assert_eq!(messages.message().await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn refusals_cross_a_real_connection() {
    let served = serve_echo("127.0.0.1", Security::Plain).await;
    let channels = Channels::new(Security::Plain);
    let mut index = channels.index(&served.address).unwrap();
    let mut refused = async |epoch| {
        let status = index.locate(proto::LocateRequest { epoch, keys: Vec::new() }).await.unwrap_err();
        Refusal::from(status)
    };
    assert_eq!(refused(0).await, Refusal::WrongOwner { epoch: Epoch(9) });
    // 200 KiB of text would not fit into trailers.
    assert!(matches!(refused(1).await, Refusal::Failed { why } if why.starts_with('é')));
}

#[tokio::test]
async fn a_peer_that_is_away_is_unreachable_and_found_again() {
    let channels = Channels::new(Security::Plain);
    let listener = HostPort { host: "127.0.0.1".to_owned(), port: 0 }.listen().await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut index = channels.index(&address).unwrap();
    let status = index.locate(ask(1)).await.unwrap_err();
    assert!(matches!(Refusal::from(status), Refusal::Unreachable { .. }));
    let listener = address.parse::<HostPort>().unwrap().listen().await.unwrap();
    tokio::spawn(serve(listener, Security::Plain, Routes::new(super::index(Echo)), std::future::pending()));
    index.locate(ask(1)).await.unwrap();
}

#[tokio::test]
async fn a_call_that_says_nothing_is_ended() {
    let served = serve_echo("127.0.0.1", Security::Plain).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", served.address)).unwrap();
    let mut calls = Grpc::new(endpoint.connect().await.unwrap());
    calls.ready().await.unwrap();
    tokio::time::pause();
    let silence = Request::new(tokio_stream::pending::<proto::LocateRequest>());
    let path = PathAndQuery::from_static("/hypic.v1.Index/Locate");
    let codec = ProstCodec::<proto::LocateRequest, proto::LocateResponse>::default();
    let call = calls.client_streaming(silence, path, codec);
    let status = tokio::time::timeout(10 * BEGIN, call).await.expect("nobody ends it").unwrap_err();
    assert_eq!(Refusal::from(status), Refusal::Cancelled);
}

/// A resolver whose answer the test changes, as DNS does when a pod comes back; `None`: no such name.
fn pool(now: &Arc<Mutex<Option<SocketAddr>>>) -> Resolver {
    let now = Arc::clone(now);
    Resolver::new(move |name| {
        assert_eq!(name.to_string(), "combine-0.combine.ns.svc:7400");
        let found = *now.lock().unwrap();
        let found = found.map(|address| vec![address]);
        Box::pin(std::future::ready(found.ok_or_else(|| io::ErrorKind::NotFound.into())))
    })
}

#[tokio::test]
async fn a_name_is_resolved_for_every_connection_and_one_that_is_unknown_yet_is_unreachable() {
    let now = Arc::new(Mutex::new(None));
    let channels = Channels::resolving(Security::Plain, pool(&now));
    let mut index = channels.index("combine-0.combine.ns.svc:7400").unwrap();
    for _ in 0..2 {
        let status = index.locate(ask(1)).await.unwrap_err();
        assert!(matches!(Refusal::from(status), Refusal::Unreachable { .. }));
    }
    for _ in 0..2 {
        // Each life has a port of its own, as each life of a pod has an address of its own.
        let served = serve_echo("127.0.0.1", Security::Plain).await;
        *now.lock().unwrap() = Some(served.address.parse().unwrap());
        // The first call after a death may still go to the dead connection.
        let mut answered = false;
        for _ in 0..100 {
            answered = index.locate(ask(1)).await.is_ok();
            if answered {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(answered);
    }
}

/// Takes a push from whoever may steer.
struct Steered;

#[tonic::async_trait]
impl Fleet for Steered {
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

#[tokio::test]
async fn operator_and_router_may_steer_and_an_agent_may_not() {
    let authority = Authority::new();
    let push = async |server: Security, client: Security| {
        let listener = HostPort { host: "127.0.0.1".to_owned(), port: 0 }.listen().await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, server, Routes::new(fleet(Steered)), std::future::pending()));
        let channels = Channels::new(client);
        let mut client = channels.fleet(&address, ServerRole::Agent).unwrap();
        client.push_topology(proto::PushTopologyRequest::default()).await.map_err(Refusal::from)
    };
    let agent = || authority.security("hypic-agent");
    for steers in [OPERATOR, "hypic-router"] {
        push(agent(), authority.security(steers)).await.unwrap();
    }
    for not in ["hypic-agent", "somebody", "*.hypic-operator"] {
        let refused = push(agent(), authority.security(not)).await.unwrap_err();
        assert!(matches!(refused, Refusal::Forbidden { .. }), "{not}: {refused}");
    }
    push(Security::Plain, Security::Plain).await.unwrap();
    assert!(check_steers(&Request::new(())).is_err(), "a call of unknown origin");
}

#[tokio::test]
async fn ipv6_and_ipv4_addresses_are_dialled_as_written() {
    let channels = Channels::new(Security::Plain);
    // A machine without IPv6 has no `::1`; there is nothing to dial then.
    let ipv6 = HostPort { host: "::1".to_owned(), port: 0 }.listen().await.is_ok();
    for host in if ipv6 { ["127.0.0.1", "::1"].as_slice() } else { &["127.0.0.1"] } {
        let served = serve_echo(host, Security::Plain).await;
        channels.index(&served.address).unwrap().locate(ask(1)).await.unwrap();
    }
    assert!(channels.index("fd00::7:7001").is_err());
}

#[tokio::test]
async fn a_silent_handshake_does_not_hold_up_the_next() {
    let authority = Authority::new();
    let served = serve_echo("127.0.0.1", authority.security("hypic-agent")).await;
    let _silent = tokio::net::TcpStream::connect(&served.address).await.unwrap();
    let channels = Channels::new(authority.security("hypic-router"));
    channels.index(&served.address).unwrap().locate(ask(1)).await.unwrap();
}

#[tokio::test]
async fn a_router_is_not_taken_for_an_agent() {
    let authority = Authority::new();
    let served = serve_echo("127.0.0.1", authority.security("hypic-router")).await;
    let channels = Channels::new(authority.security("hypic-agent"));
    let status = channels.index(&served.address).unwrap().locate(ask(1)).await.unwrap_err();
    assert!(matches!(Refusal::from(status), Refusal::Unreachable { .. }));
    drop(channels.fleet(&served.address, ServerRole::Router).unwrap());
}
