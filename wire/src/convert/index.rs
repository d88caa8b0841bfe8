//! What the index answers and hears.

use hypic_domain::flow::{Holder, Located};
use hypic_domain::id::{AgentId, Incarnation};
use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;

use super::key;
use crate::{Error, proto};

impl From<Located> for proto::Located {
    fn from(located: Located) -> Self {
        let Located { holders, building } = located;
        Self {
            holders: holders.into_iter().map(Into::into).collect(),
            building: building.map(|agent| agent.0).unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Located> for Located {
    type Error = Error;

    fn try_from(located: proto::Located) -> Result<Self, Error> {
        let proto::Located { holders, building } = located;
        let holders = holders.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        Ok(Self { holders, building: (!building.is_empty()).then_some(AgentId(building)) })
    }
}

impl From<Holder> for proto::Holder {
    fn from(holder: Holder) -> Self {
        let Holder { agent, incarnation, tier, bytes } = holder;
        Self {
            agent: agent.0,
            incarnation: incarnation.0,
            tier: proto::Tier::from(tier).into(),
            bytes: bytes.0,
        }
    }
}

impl TryFrom<proto::Holder> for Holder {
    type Error = Error;

    fn try_from(holder: proto::Holder) -> Result<Self, Error> {
        let tier = holder.tier().try_into()?;
        let proto::Holder { agent, incarnation, tier: _, bytes } = holder;
        if agent.is_empty() {
            return Err(Error::FindField { field: "holder.agent" });
        }
        Ok(Self { agent: AgentId(agent), incarnation: Incarnation(incarnation), tier, bytes: Bytes(bytes) })
    }
}

/// One change of a holder: the key and where it lies now; `None` when it is gone.
pub type Change = (SegmentKey, Option<(Tier, Bytes)>);

/// A change as it is announced.
pub fn to_change((key, held): Change) -> proto::Change {
    let held =
        held.map(|(tier, bytes)| proto::HeldIn { tier: proto::Tier::from(tier).into(), bytes: bytes.0 });
    proto::Change { key: key.0.to_vec(), held }
}

/// An announced change.
///
/// # Errors
/// A key of another length, or an unknown tier.
pub fn from_change(change: proto::Change) -> Result<Change, Error> {
    let proto::Change { key: bytes, held } = change;
    let held = match held {
        Some(held) => Some((held.tier().try_into()?, Bytes(held.bytes))),
        None => None,
    };
    Ok((key("change.key", &bytes)?, held))
}
