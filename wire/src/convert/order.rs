//! The order of a request, and the builds it leads to.

use hypic_domain::flow::{Mode, Order, Piece, Source};
use hypic_domain::id::{AgentId, Epoch, RequestId, TenantId};
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::unit::{Bytes, Millis, Tokens};

use super::{from_name, identity, key, millis, scope, to_name};
use crate::{Error, proto};

/// An order with what lets the agent refuse it: the router's epoch and the identity it made keys with.
#[derive(Clone, Debug)]
pub struct Addressed {
    /// The router's epoch.
    pub epoch: Epoch,
    /// The identity in the order's keys.
    pub identity: Identity,
    /// The order.
    pub order: Order,
}

impl TryFrom<Addressed> for proto::GenerateRequest {
    type Error = Error;

    fn try_from(addressed: Addressed) -> Result<Self, Error> {
        let Addressed { epoch, identity, order } = addressed;
        let Order {
            id,
            tenant,
            scope,
            mode,
            pieces,
            boundaries,
            sources,
            snapshot,
            choices,
            deadline,
            answered,
            measure_gap,
        } = order;
        let mut sources = sources.into_iter();
        let pieces = pieces.into_iter().map(|piece| to_piece(piece, sources.next().flatten()));
        Ok(Self {
            epoch: epoch.0,
            id: id.0,
            tenant: tenant.0,
            scope: scope.0.to_vec(),
            mode: mode.name().to_owned(),
            pieces: pieces.collect::<Result<_, _>>()?,
            boundaries: boundaries
                .into_iter()
                .map(|(tokens, key)| proto::Boundary { tokens: tokens.0, key: key.0.to_vec() })
                .collect(),
            snapshot: snapshot.0,
            choices: choices.into_iter().map(Into::into).collect(),
            deadline_ms: deadline.map(|left| left.0),
            answered,
            measure_gap,
            identity: identity.0.to_vec(),
        })
    }
}

impl TryFrom<proto::GenerateRequest> for Addressed {
    type Error = Error;

    fn try_from(request: proto::GenerateRequest) -> Result<Self, Error> {
        let proto::GenerateRequest {
            epoch,
            id,
            tenant,
            scope: scope_bytes,
            mode,
            pieces,
            boundaries,
            snapshot,
            choices,
            deadline_ms,
            answered,
            measure_gap,
            identity: identity_bytes,
        } = request;
        if pieces.is_empty() {
            return Err(Error::FindField { field: "pieces" });
        }
        if choices.is_empty() {
            return Err(Error::FindField { field: "choices" });
        }
        let mode =
            Mode::parse(&mode).ok_or_else(|| Error::ReadName { field: "mode", value: mode.clone() })?;
        let pieces = pieces.into_iter().map(from_piece).collect::<Result<Vec<_>, _>>()?;
        let (pieces, sources) = pieces.into_iter().unzip();
        let boundary = |proto::Boundary { tokens, key: bytes }: proto::Boundary| {
            Ok((Tokens(tokens), key("boundary.key", &bytes)?))
        };
        let order = Order {
            id: RequestId(id),
            tenant: TenantId(tenant),
            scope: scope(&scope_bytes)?,
            mode,
            pieces,
            boundaries: boundaries.into_iter().map(boundary).collect::<Result<_, Error>>()?,
            sources,
            snapshot: Tokens(snapshot),
            choices: choices.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            deadline: deadline_ms.map(|left| millis("deadline_ms", left)).transpose()?,
            answered,
            measure_gap,
        };
        Ok(Self { epoch: Epoch(epoch), identity: identity(&identity_bytes)?, order })
    }
}

fn to_piece(piece: Piece, source: Option<Source>) -> Result<proto::Piece, Error> {
    let Piece { ids, origin, key } = piece;
    Ok(proto::Piece {
        ids,
        origin: to_name("origin", &origin)?,
        key: key.map(|key| key.0.to_vec()).unwrap_or_default(),
        source: source.map(Into::into),
    })
}

fn from_piece(piece: proto::Piece) -> Result<(Piece, Option<Source>), Error> {
    let proto::Piece { ids, origin, key: bytes, source } = piece;
    let key = if bytes.is_empty() { None } else { Some(key("piece.key", &bytes)?) };
    let source = source.map(Source::try_from).transpose()?;
    if source.is_some() && key.is_none() {
        return Err(Error::FindField { field: "piece.key" });
    }
    Ok((Piece { ids, origin: from_name("origin", &origin)?, key }, source))
}

impl From<Source> for proto::Source {
    fn from(source: Source) -> Self {
        use proto::source::{BuildAt, BuildHere, Fetch, From, Local};
        let from = match source {
            Source::Local => From::Local(Local {}),
            Source::Fetch { holders } => {
                From::Fetch(Fetch { holders: holders.into_iter().map(|agent| agent.0).collect() })
            }
            Source::Build { worker } => From::Build(BuildAt { worker: worker.0 }),
            Source::BuildHere => From::BuildHere(BuildHere {}),
        };
        Self { from: Some(from) }
    }
}

impl TryFrom<proto::Source> for Source {
    type Error = Error;

    fn try_from(source: proto::Source) -> Result<Self, Error> {
        use proto::source::{BuildAt, BuildHere, Fetch, From, Local};
        let proto::Source { from } = source;
        Ok(match from.ok_or(Error::FindField { field: "source.from" })? {
            From::Local(Local {}) => Self::Local,
            From::Fetch(Fetch { holders }) => {
                Self::Fetch { holders: holders.into_iter().map(AgentId).collect() }
            }
            From::Build(BuildAt { worker }) => Self::Build { worker: AgentId(worker) },
            From::BuildHere(BuildHere {}) => Self::BuildHere,
        })
    }
}

/// One segment to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildSegment {
    /// Its key.
    pub key: SegmentKey,
    /// Whose it is.
    pub scope: Scope,
    /// Token ids.
    pub ids: Vec<u32>,
}

/// Segments for one worker to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildOrder {
    /// The asker's epoch.
    pub epoch: Epoch,
    /// The request they are for.
    pub id: RequestId,
    /// The identity in the keys.
    pub identity: Identity,
    /// What to build.
    pub segments: Vec<BuildSegment>,
    /// Bytes of parts that may be announced and not yet pulled.
    pub credit: Bytes,
    /// Milliseconds left.
    pub deadline: Millis,
}

impl From<BuildOrder> for proto::BuildStart {
    fn from(order: BuildOrder) -> Self {
        let BuildOrder { epoch, id, identity, segments, credit, deadline } = order;
        let segment = |BuildSegment { key, scope, ids }: BuildSegment| proto::BuildSegment {
            key: key.0.to_vec(),
            scope: scope.0.to_vec(),
            ids,
        };
        Self {
            epoch: epoch.0,
            id: id.0,
            identity: identity.0.to_vec(),
            segments: segments.into_iter().map(segment).collect(),
            credit_bytes: credit.0,
            deadline_ms: deadline.0,
        }
    }
}

impl TryFrom<proto::BuildStart> for BuildOrder {
    type Error = Error;

    fn try_from(start: proto::BuildStart) -> Result<Self, Error> {
        let proto::BuildStart { epoch, id, identity: bytes, segments, credit_bytes, deadline_ms } = start;
        if segments.is_empty() {
            return Err(Error::FindField { field: "segments" });
        }
        let segment = |proto::BuildSegment { key: bytes, scope: scope_bytes, ids }: proto::BuildSegment| {
            Ok(BuildSegment { key: key("segment.key", &bytes)?, scope: scope(&scope_bytes)?, ids })
        };
        Ok(Self {
            epoch: Epoch(epoch),
            id: RequestId(id),
            identity: identity(&bytes)?,
            segments: segments.into_iter().map(segment).collect::<Result<_, Error>>()?,
            credit: Bytes(credit_bytes),
            deadline: millis("deadline_ms", deadline_ms)?,
        })
    }
}
