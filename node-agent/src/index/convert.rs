//! Messages of the index: wire <-> lookup.

use hypic_domain::id::{AgentId, Epoch, Incarnation, Sequence};
use hypic_domain::key::SegmentKey;
use hypic_lookup::{Announcement, Change, Claim, DumpPage, Error, Message, Sender, Verdict};
use hypic_wire::convert::index::{from_change, to_change};
use hypic_wire::convert::key;
use hypic_wire::proto;
use hypic_wire::proto::announce_request::Message as Body;
use hypic_wire::status::Refusal;

pub(super) fn keys(bytes: &[Vec<u8>]) -> Result<Vec<SegmentKey>, Refusal> {
    bytes.iter().map(|bytes| key("key", bytes).map_err(Refusal::from)).collect()
}

pub(super) fn refusal(error: Error) -> Refusal {
    match error {
        Error::WrongOwner { epoch, .. } => Refusal::WrongOwner { epoch },
        Error::AdoptTopology { epoch, .. } => Refusal::OldEpoch { epoch },
    }
}

pub(super) fn to_announce(message: Message) -> proto::AnnounceRequest {
    let (Sender { agent, incarnation, epoch }, body) = match message {
        Message::Announce(Announcement { sender, sequence, changes }) => {
            let changes = changes.into_iter().map(change_out).collect();
            (sender, Body::Announcement(proto::Announcement { sequence: sequence.0, changes }))
        }
        Message::Dump(DumpPage { sender, dump, at, page, last, claims }) => {
            let claims = claims.into_iter().map(|claim| change_out(Change::Has(claim))).collect();
            (sender, Body::Page(proto::DumpPage { dump, at: at.0, page, last, claims }))
        }
    };
    proto::AnnounceRequest { epoch: epoch.0, agent: agent.0, incarnation: incarnation.0, message: Some(body) }
}

pub(super) fn from_announce(request: proto::AnnounceRequest) -> Result<Message, Refusal> {
    let proto::AnnounceRequest { epoch, agent, incarnation, message } = request;
    let sender = Sender { agent: AgentId(agent), incarnation: Incarnation(incarnation), epoch: Epoch(epoch) };
    match message {
        Some(Body::Announcement(proto::Announcement { sequence, changes })) => {
            let changes = changes.into_iter().map(change_in).collect::<Result<_, _>>()?;
            Ok(Message::Announce(Announcement { sender, sequence: Sequence(sequence), changes }))
        }
        Some(Body::Page(proto::DumpPage { dump, at, page, last, claims })) => {
            let claims = claims.into_iter().map(|claim| match change_in(claim)? {
                Change::Has(claim) => Ok(claim),
                Change::Gone(_) => Err(Refusal::Malformed { why: "a dump holds a removal".to_owned() }),
            });
            let claims = claims.collect::<Result<_, _>>()?;
            Ok(Message::Dump(DumpPage { sender, dump, at: Sequence(at), page, last, claims }))
        }
        None => Err(Refusal::Malformed { why: "an announcement without a message".to_owned() }),
    }
}

fn change_out(change: Change) -> proto::Change {
    match change {
        Change::Has(Claim { key, tier, bytes }) => to_change((key, Some((tier, bytes)))),
        Change::Gone(key) => to_change((key, None)),
    }
}

fn change_in(change: proto::Change) -> Result<Change, Refusal> {
    Ok(match from_change(change)? {
        (key, Some((tier, bytes))) => Change::Has(Claim { key, tier, bytes }),
        (key, None) => Change::Gone(key),
    })
}

pub(super) fn to_verdict(verdict: Verdict, epoch: Epoch) -> proto::AnnounceResponse {
    let (verdict, incarnation) = match verdict {
        Verdict::Applied => (proto::Verdict::Applied, 0),
        Verdict::Old => (proto::Verdict::Old, 0),
        Verdict::NeedDump => (proto::Verdict::NeedDump, 0),
        Verdict::WrongOwner { .. } => (proto::Verdict::WrongOwner, 0),
        Verdict::Stranger => (proto::Verdict::Stranger, 0),
        Verdict::Fenced { incarnation } => (proto::Verdict::Fenced, incarnation.0),
    };
    proto::AnnounceResponse { verdict: verdict.into(), epoch: epoch.0, incarnation }
}

pub(super) fn from_verdict(response: &proto::AnnounceResponse) -> Result<Verdict, Refusal> {
    Ok(match response.verdict() {
        proto::Verdict::Applied => Verdict::Applied,
        proto::Verdict::Old => Verdict::Old,
        proto::Verdict::NeedDump => Verdict::NeedDump,
        proto::Verdict::WrongOwner => Verdict::WrongOwner { epoch: Epoch(response.epoch) },
        proto::Verdict::Stranger => Verdict::Stranger,
        proto::Verdict::Fenced => Verdict::Fenced { incarnation: Incarnation(response.incarnation) },
        proto::Verdict::Unspecified => {
            return Err(Refusal::Malformed { why: "an answer without a verdict".to_owned() });
        }
    })
}
