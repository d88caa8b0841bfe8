use hypic_domain::flow::{
    ColdReason, DrawnToken, Holder, Located, Mode, Order, Origin, Piece, PromptCounts, ReadyState,
    SegmentOutcome, SegmentReport, Source, TokenEvent,
};
use hypic_domain::id::{AgentId, Epoch, Incarnation, RequestId, TenantId};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::tier::Tier;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};
use hypic_domain::tuple::{PartKind, PartSpec};
use hypic_domain::unit::{Bytes, Millis, Tokens};

use super::index::{from_change, to_change};
use super::order::{Addressed, BuildOrder, BuildSegment};
use super::token::from_event;
use super::tuple::{BuildEvent, LeasedTuple, from_leased, not_leased};
use crate::{Error, proto};

fn order() -> Order {
    let piece = |origin, key: Option<u8>| Piece {
        ids: vec![1, 2, 3],
        origin,
        key: key.map(|byte| SegmentKey([byte; 32])),
    };
    Order {
        id: RequestId::from("r"),
        tenant: TenantId::from("t"),
        scope: Scope([9; 32]),
        mode: Mode::Pic,
        pieces: vec![
            piece(Origin::System, Some(1)),
            piece(Origin::ToolResult, Some(2)),
            piece(Origin::Part, Some(3)),
            piece(Origin::Turn, Some(4)),
            piece(Origin::Query, None),
        ],
        boundaries: vec![(Tokens(3), SegmentKey([5; 32]))],
        sources: vec![
            Some(Source::Local),
            Some(Source::Fetch { holders: vec![AgentId::from("a"), AgentId::from("b")] }),
            Some(Source::Build { worker: AgentId::from("w") }),
            Some(Source::BuildHere),
            None,
        ],
        snapshot: Tokens(3),
        choices: vec![Sampling { logprobs: Some(2), logit_bias: vec![(7, -100.0)], ..Sampling::default() }],
        deadline: Some(Millis(1500.5)),
        answered: vec![4, 5],
        measure_gap: true,
    }
}

fn request() -> proto::GenerateRequest {
    Addressed { epoch: Epoch(3), identity: Identity([8; 32]), order: order() }.try_into().unwrap()
}

fn spec() -> PartSpec {
    PartSpec { layer: 7, kind: PartKind::Value, offset: 100, len: 20, sum: u64::MAX }
}

#[test]
fn an_order_survives_the_wire() {
    let back = Addressed::try_from(request()).unwrap();
    assert_eq!((back.epoch, back.identity), (Epoch(3), Identity([8; 32])));
    let (there, here) = (back.order, order());
    assert_eq!(format!("{there:?}"), format!("{here:?}"));
    // A scope hides itself from Debug.
    assert_eq!(there.scope, here.scope);
}

#[test]
fn an_order_that_cannot_be_is_refused_by_field() {
    let refused = |change: &dyn Fn(&mut proto::GenerateRequest)| {
        let mut request = request();
        change(&mut request);
        Addressed::try_from(request).unwrap_err().to_string()
    };
    assert!(refused(&|r| r.pieces.clear()).contains("pieces"));
    assert!(refused(&|r| r.choices.clear()).contains("choices"));
    assert!(refused(&|r| r.mode = "pik".into()).contains("'pik'"));
    assert!(refused(&|r| r.scope.truncate(31)).contains("31 bytes"));
    assert!(refused(&|r| r.identity.push(0)).contains("33 bytes"));
    assert!(refused(&|r| r.pieces[0].key.truncate(1)).contains("piece.key"));
    assert!(refused(&|r| r.pieces[0].key.clear()).contains("piece.key"));
    assert!(refused(&|r| r.pieces[0].origin = "moon".into()).contains("'moon'"));
    assert!(refused(&|r| r.pieces[0].source = Some(proto::Source { from: None })).contains("source.from"));
    assert!(refused(&|r| r.deadline_ms = Some(f64::NAN)).contains("deadline_ms"));
    assert!(refused(&|r| r.deadline_ms = Some(-1.0)).contains("deadline_ms"));
    assert!(refused(&|r| r.choices[0].temperature = f32::INFINITY).contains("temperature"));
    assert!(refused(&|r| r.choices[0].logit_bias[0].addend = f32::NAN).contains("logit_bias"));
}

#[test]
fn a_topology_survives_the_wire_and_bad_addresses_do_not() {
    let entry = |id: &str, role, control: &str| AgentEntry {
        id: AgentId::from(id),
        role,
        control: control.to_owned(),
        bulk: "[fd00::7]:7002".to_owned(),
    };
    let topology = Topology {
        epoch: Epoch(4),
        revision: 9,
        agents: vec![
            entry("c", AgentRole::Combine, "c.pool:7001"),
            entry("s", AgentRole::Scatter, "10.0.0.1:7001"),
        ],
    };
    assert_eq!(Topology::try_from(proto::Topology::from(topology.clone())).unwrap(), topology);

    let refused = |change: &dyn Fn(&mut proto::AgentEntry)| {
        let mut message = proto::Topology::from(topology.clone());
        change(&mut message.agents[0]);
        Topology::try_from(message).unwrap_err()
    };
    assert!(matches!(refused(&|a| a.control = "fd00::7:7001".into()), Error::ReadAddress { .. }));
    assert!(matches!(refused(&|a| a.bulk.clear()), Error::ReadAddress { .. }));
    assert!(matches!(refused(&|a| a.id.clear()), Error::FindField { .. }));
    assert!(matches!(refused(&|a| a.role = 0), Error::ReadName { .. }));
    assert!(matches!(refused(&|a| a.role = 99), Error::ReadName { .. }));
}

#[test]
fn what_the_index_says_survives_the_wire() {
    let located = Located {
        holders: [Tier::Device, Tier::Host, Tier::Disk, Tier::Object]
            .map(|tier| Holder {
                agent: AgentId::from("a"),
                incarnation: Incarnation(u64::MAX),
                tier,
                bytes: Bytes(1 << 40),
            })
            .to_vec(),
        building: Some(AgentId::from("b")),
    };
    assert_eq!(Located::try_from(proto::Located::from(located.clone())).unwrap(), located);
    assert_eq!(Located::try_from(proto::Located::default()).unwrap(), Located::default());
    for change in [(SegmentKey([1; 32]), None), (SegmentKey([1; 32]), Some((Tier::Disk, Bytes(5))))] {
        assert_eq!(from_change(to_change(change)).unwrap(), change);
    }
    let mut unknown = to_change((SegmentKey([1; 32]), Some((Tier::Disk, Bytes(5)))));
    unknown.held.as_mut().unwrap().tier = 17;
    assert!(matches!(from_change(unknown), Err(Error::ReadName { .. })));
}

#[test]
fn token_events_survive_the_wire() {
    let ready = ReadyState {
        counts: PromptCounts { exact: 1, hit: 2, built: 3, seam: 4, live: 5 },
        segments: vec![SegmentReport {
            piece: 0,
            outcome: SegmentOutcome::Built { cold: ColdReason::Stale },
            by: Some(AgentId::from("w")),
        }],
        stations: vec![("scatter".to_owned(), Millis(1.25))],
        gap: Some(1e-5),
    };
    let token = DrawnToken { choice: 1, id: 9, logprob: Some(-0.5), top: vec![(9, -0.5), (8, -1.5)] };
    for event in [
        TokenEvent::Ready(ready),
        TokenEvent::Token(token),
        TokenEvent::Finished { choice: 1, reason: FinishReason::Length },
    ] {
        assert_eq!(from_event(event.clone().try_into().unwrap()).unwrap(), [event]);
    }
    assert!(matches!(from_event(proto::GenerateEvent { event: None }), Err(Error::FindField { .. })));
}

#[test]
fn parts_leases_and_builds_survive_the_wire() {
    let key = SegmentKey([1; 32]);
    let leased = LeasedTuple {
        key,
        manifest: "manifest".into(),
        lease: 5,
        ticket: "ticket".into(),
        parts: [PartKind::Transition, PartKind::State, PartKind::Tail, PartKind::Key, PartKind::Value]
            .map(|kind| PartSpec { kind, ..spec() })
            .to_vec(),
    };
    assert_eq!(from_leased(leased.clone().into()).unwrap(), Some(leased));
    assert_eq!(from_leased(not_leased(key)).unwrap(), None);

    for event in [
        BuildEvent::Part { key, spec: spec(), ticket: "t".into(), layer_parts: 3 },
        BuildEvent::Built { key, manifest: "m".into(), parts: 9 },
        BuildEvent::Failed { key, reason: "no room".to_owned() },
    ] {
        assert_eq!(BuildEvent::try_from(proto::BuildEvent::from(event.clone())).unwrap(), event);
    }

    let order = BuildOrder {
        epoch: Epoch(1),
        id: RequestId::from("r"),
        identity: Identity([2; 32]),
        segments: vec![BuildSegment { key, scope: Scope::PUBLIC, ids: vec![1, 2] }],
        credit: Bytes(1 << 33),
        deadline: Millis(10.0),
    };
    assert_eq!(BuildOrder::try_from(proto::BuildStart::from(order.clone())).unwrap(), order);
}

#[test]
fn a_part_that_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut proto::PartSpec)| {
        let mut part = proto::PartSpec::from(spec());
        change(&mut part);
        PartSpec::try_from(part).is_err()
    };
    assert!(refused(&|part| part.kind = 5));
    assert!(refused(&|part| part.len = 0));
    assert!(refused(&|part| part.layer = 1 << 16));
    assert!(refused(&|part| part.offset = u64::MAX));
}
