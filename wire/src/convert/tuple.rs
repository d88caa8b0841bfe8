//! Tuples on offer: parts, leases, the events of a build.

use bytes::Bytes;
use hypic_domain::key::SegmentKey;
use hypic_domain::tuple::{PartKind, PartSpec};

use super::{key, narrow};
use crate::{Error, proto};

impl From<PartSpec> for proto::PartSpec {
    fn from(spec: PartSpec) -> Self {
        let PartSpec { layer, kind, offset, len, sum } = spec;
        let kind = match kind {
            PartKind::Transition => 0,
            PartKind::State => 1,
            PartKind::Tail => 2,
            PartKind::Key => 3,
            PartKind::Value => 4,
        };
        Self { layer: layer.into(), kind, offset, len, sum }
    }
}

impl TryFrom<proto::PartSpec> for PartSpec {
    type Error = Error;

    fn try_from(spec: proto::PartSpec) -> Result<Self, Error> {
        let proto::PartSpec { layer, kind, offset, len, sum } = spec;
        let kind = match kind {
            0 => PartKind::Transition,
            1 => PartKind::State,
            2 => PartKind::Tail,
            3 => PartKind::Key,
            4 => PartKind::Value,
            other => return Err(Error::ReadName { field: "part.kind", value: other.to_string() }),
        };
        if len == 0 || offset.checked_add(len).is_none() {
            return Err(Error::ReadNumber { field: "part.len", value: len.to_string() });
        }
        Ok(Self { layer: narrow("part.layer", layer.into())?, kind, offset, len, sum })
    }
}

/// A tuple pinned for a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedTuple {
    /// Its key.
    pub key: SegmentKey,
    /// The codec's manifest.
    pub manifest: Bytes,
    /// To be released by this number.
    pub lease: u64,
    /// The right to read it.
    pub ticket: Bytes,
    /// Its parts, layer-major.
    pub parts: Vec<PartSpec>,
}

impl From<LeasedTuple> for proto::Leased {
    fn from(leased: LeasedTuple) -> Self {
        let LeasedTuple { key, manifest, lease, ticket, parts } = leased;
        Self {
            key: key.0.to_vec(),
            manifest: manifest.into(),
            lease,
            ticket: ticket.into(),
            parts: parts.into_iter().map(Into::into).collect(),
        }
    }
}

/// A leased tuple; `None` for a key that the agent does not have.
///
/// # Errors
/// A key of another length, or a part that cannot be.
pub fn from_leased(leased: proto::Leased) -> Result<Option<LeasedTuple>, Error> {
    let proto::Leased { key: bytes, manifest, lease, ticket, parts } = leased;
    let key = key("leased.key", &bytes)?;
    if manifest.is_empty() {
        return Ok(None);
    }
    let parts = parts.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
    Ok(Some(LeasedTuple { key, manifest: manifest.into(), lease, ticket: ticket.into(), parts }))
}

/// The answer for a key that is not here.
pub fn not_leased(key: SegmentKey) -> proto::Leased {
    proto::Leased { key: key.0.to_vec(), ..Default::default() }
}

/// What a builder tells while it builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildEvent {
    /// A part lies on the builder and can be pulled.
    Part {
        /// Of which segment.
        key: SegmentKey,
        /// What and where.
        spec: PartSpec,
        /// The right to read it.
        ticket: Bytes,
        /// How many parts its layer has.
        layer_parts: u32,
    },
    /// All parts of a segment were announced.
    Built {
        /// Of which segment.
        key: SegmentKey,
        /// The codec's manifest.
        manifest: Bytes,
        /// How many parts there were.
        parts: u32,
    },
    /// A segment will not be built.
    Failed {
        /// Which.
        key: SegmentKey,
        /// Why.
        reason: String,
    },
}

impl BuildEvent {
    /// The segment it is about.
    pub fn key(&self) -> SegmentKey {
        match self {
            Self::Part { key, .. } | Self::Built { key, .. } | Self::Failed { key, .. } => *key,
        }
    }
}

impl From<BuildEvent> for proto::BuildEvent {
    fn from(event: BuildEvent) -> Self {
        use proto::build_event::Event;
        let event = match event {
            BuildEvent::Part { key, spec, ticket, layer_parts } => Event::Part(proto::PartReady {
                key: key.0.to_vec(),
                spec: Some(spec.into()),
                ticket: ticket.into(),
                layer_parts,
            }),
            BuildEvent::Built { key, manifest, parts } => {
                Event::Built(proto::Built { key: key.0.to_vec(), manifest: manifest.into(), parts })
            }
            BuildEvent::Failed { key, reason } => {
                Event::Failed(proto::BuildFailed { key: key.0.to_vec(), reason })
            }
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<proto::BuildEvent> for BuildEvent {
    type Error = Error;

    fn try_from(event: proto::BuildEvent) -> Result<Self, Error> {
        use proto::build_event::Event;
        let proto::BuildEvent { event } = event;
        Ok(match event.ok_or(Error::FindField { field: "event" })? {
            Event::Part(proto::PartReady { key: bytes, spec, ticket, layer_parts }) => Self::Part {
                key: key("part.key", &bytes)?,
                spec: spec.ok_or(Error::FindField { field: "part.spec" })?.try_into()?,
                ticket: ticket.into(),
                layer_parts,
            },
            Event::Built(proto::Built { key: bytes, manifest, parts }) => {
                Self::Built { key: key("built.key", &bytes)?, manifest: manifest.into(), parts }
            }
            Event::Failed(proto::BuildFailed { key: bytes, reason }) => {
                Self::Failed { key: key("failed.key", &bytes)?, reason }
            }
        })
    }
}
