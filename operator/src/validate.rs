//! What a spec asks for that cannot be, as far as the schema could not tell.

use hypic_crds::HypicCluster;

use crate::fault::Fault;
use crate::observe::{Observed, Tenants};
use crate::plan::agents::{memory, room};
use crate::plan::pod::bytes;

/// Every fault, worst first.
pub fn validate(cluster: &HypicCluster, observed: &Observed) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |reason, blocks, message: String| faults.push(Fault { reason, message, blocks });
    if observed.model.is_none() {
        let name = cluster.spec.node_pools.first().map_or("", |pool| pool.model_ref.as_str());
        let message =
            format!("spec.nodePools[0].modelRef: there is no HypicModel '{name}' in this namespace");
        fault("ModelNotFound", true, message);
    }
    if let Tenants::Missing(what) = &observed.tenants {
        fault("SecretNotFound", true, format!("spec.security.tenantsSecretRef: {what}"));
    }
    if let (Some(false), Some(model)) = (observed.claim, &observed.model)
        && let Some(volume) = &model.spec.source.pvc
    {
        let name = model.metadata.name.as_deref().unwrap_or_default();
        let claim = &volume.claim_name;
        let message = format!("HypicModel '{name}': spec.source.pvc.claimName: there is no claim '{claim}'");
        fault("ClaimNotFound", true, message);
    }
    for (number, pool) in cluster.spec.node_pools.iter().enumerate() {
        let limit = pool.resources.as_ref().and_then(|wanted| wanted.limits.get("memory"));
        let needed = memory(pool, &cluster.spec.cache_tiers);
        if let Some(limit) = limit.and_then(|limit| limit.bytes()).filter(|limit| *limit < needed) {
            let parts = match pool.gpus_per_agent {
                0 => "engineMemory, the Device and Host tiers",
                _ => "the Host tier",
            };
            let message = format!(
                "spec.nodePools[{number}].resources.limits.memory: {} is under {parts} and {} of room, together {}",
                bytes(limit),
                bytes(room(pool)),
                bytes(needed),
            );
            fault("MemoryLimitTooLow", true, message);
        }
    }
    faults
}
