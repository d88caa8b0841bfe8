//! The topology.

use hypic_domain::id::{AgentId, Epoch};
use hypic_domain::tier::Tier;
use hypic_domain::topology::{AgentEntry, AgentRole, Topology};

use crate::address::HostPort;
use crate::{Error, proto};

impl From<Topology> for proto::Topology {
    fn from(topology: Topology) -> Self {
        let Topology { epoch, revision, agents } = topology;
        Self { epoch: epoch.0, revision, agents: agents.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<proto::Topology> for Topology {
    type Error = Error;

    fn try_from(topology: proto::Topology) -> Result<Self, Error> {
        let proto::Topology { epoch, revision, agents } = topology;
        let agents = agents.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        Ok(Self { epoch: Epoch(epoch), revision, agents })
    }
}

impl From<AgentEntry> for proto::AgentEntry {
    fn from(entry: AgentEntry) -> Self {
        let AgentEntry { id, role, control, bulk } = entry;
        Self { id: id.0, role: proto::AgentRole::from(role).into(), control, bulk }
    }
}

impl TryFrom<proto::AgentEntry> for AgentEntry {
    type Error = Error;

    fn try_from(entry: proto::AgentEntry) -> Result<Self, Error> {
        let role = entry.role();
        let proto::AgentEntry { id, role: _, control, bulk } = entry;
        if id.is_empty() {
            return Err(Error::FindField { field: "agent.id" });
        }
        // An address that no one can dial is refused when it arrives, not at the first request.
        control.parse::<HostPort>()?;
        bulk.parse::<HostPort>()?;
        Ok(Self { id: AgentId(id), role: role.try_into()?, control, bulk })
    }
}

impl From<AgentRole> for proto::AgentRole {
    fn from(role: AgentRole) -> Self {
        match role {
            AgentRole::Combine => Self::Combine,
            AgentRole::Scatter => Self::Scatter,
        }
    }
}

impl TryFrom<proto::AgentRole> for AgentRole {
    type Error = Error;

    fn try_from(role: proto::AgentRole) -> Result<Self, Error> {
        match role {
            proto::AgentRole::Combine => Ok(Self::Combine),
            proto::AgentRole::Scatter => Ok(Self::Scatter),
            proto::AgentRole::Unspecified => {
                Err(Error::ReadName { field: "role", value: role.as_str_name().to_owned() })
            }
        }
    }
}

impl From<Tier> for proto::Tier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Device,
            Tier::Host => Self::Host,
            Tier::Disk => Self::Disk,
            Tier::Object => Self::Object,
        }
    }
}

impl TryFrom<proto::Tier> for Tier {
    type Error = Error;

    fn try_from(tier: proto::Tier) -> Result<Self, Error> {
        match tier {
            proto::Tier::Device => Ok(Self::Device),
            proto::Tier::Host => Ok(Self::Host),
            proto::Tier::Disk => Ok(Self::Disk),
            proto::Tier::Object => Ok(Self::Object),
            proto::Tier::Unspecified => {
                Err(Error::ReadName { field: "tier", value: tier.as_str_name().to_owned() })
            }
        }
    }
}
