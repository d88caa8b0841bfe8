//! From what was seen to what a status says: pure.

use std::collections::BTreeSet;

use hypic_crds::cluster::{PoolStatus, Summary};
use hypic_crds::condition::{Finding, Is, conditions, kind};
use hypic_crds::pool::{NodePool, PoolRole};
use hypic_crds::scatter_pool::HypicScatterPoolStatus;
use hypic_crds::{HypicCluster, HypicClusterStatus};
use hypic_domain::topology::{AgentRole, Topology};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::fault::Fault;
use crate::observe::Observed;
use crate::plan::names::{CLUSTER, Names, POOL};
use crate::pulse::{Pulse, ScalingPulse};
use crate::rollout;
use crate::trouble::{self, Trouble};

/// What a report is made from.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The cluster.
    pub cluster: &'a HypicCluster,
    /// What is there.
    pub observed: &'a Observed,
    /// Agents asked for, by pool, in the spec's order.
    pub wanted: &'a [(&'a NodePool, i32)],
    /// Faults of the spec and of this pass.
    pub faults: &'a [Fault],
    /// The topology that was planned; nothing while a fault blocks planning.
    pub topology: Option<&'a Topology>,
    /// Names of the Deployments and StatefulSets that this pass has written.
    pub written: &'a BTreeSet<String>,
    /// What routers told last; nothing before they were asked.
    pub pulse: Option<&'a Pulse>,
    /// Nothing is changed, by the spec's wish.
    pub paused: bool,
}

/// The status of a HypicCluster.
pub fn cluster(facts: &Facts<'_>, now: &Time) -> HypicClusterStatus {
    let before = facts.cluster.status.clone().unwrap_or_default();
    let names = Names::of(facts.cluster);
    let generation = facts.cluster.metadata.generation.unwrap_or_default();
    let pools: Vec<PoolStatus> = facts
        .wanted
        .iter()
        .map(|(pool, desired)| {
            let ready = facts.observed.ready(POOL, &pool.name);
            PoolStatus { name: pool.name.clone(), desired: *desired, ready }
        })
        .collect();
    let of_role = |role: PoolRole| {
        let of = facts.wanted.iter().zip(&pools).filter(|((pool, _), _)| pool.role == role);
        of.fold((0, 0), |(ready, desired), (_, status)| (ready + status.ready, desired + status.desired))
    };
    let routers = (facts.observed.ready(POOL, "router"), facts.cluster.spec.router.replicas);
    let counts = Counts { routers, combine: of_role(PoolRole::Combine), scatter: of_role(PoolRole::Scatter) };
    // Nothing without traffic; as told last while nobody was asked.
    let share = |of: fn(&Pulse) -> Option<u8>, before: &str| match facts.pulse {
        Some(pulse) => of(pulse).map(|share| format!("{share}%")).unwrap_or_default(),
        None => before.to_owned(),
    };
    let port = match facts.cluster.spec.router.service.port {
        80 => String::new(),
        port => format!(":{port}"),
    };
    let mut conditions = conditions(&findings(facts, &counts), &before.conditions, generation, now);
    if facts.pulse.is_none() && !facts.paused {
        keep_unknown(&mut conditions, &before.conditions);
    }
    HypicClusterStatus {
        observed_generation: Some(generation),
        conditions,
        endpoint: Some(format!("http://{}.{}.svc{port}/v1", names.cluster, names.namespace)),
        topology_epoch: facts
            .topology
            .map_or(before.topology_epoch, |topology| i64::try_from(topology.epoch.0).ok()),
        topology_revision: facts
            .topology
            .map_or(before.topology_revision, |topology| i64::try_from(topology.revision).ok()),
        pools,
        summary: Summary {
            router: of(counts.routers),
            combine: of(counts.combine),
            scatter: of(counts.scatter),
            cold_share: share(|pulse| pulse.cold_share_percent, &before.summary.cold_share),
            hit_share: share(|pulse| pulse.hit_share_percent, &before.summary.hit_share),
        },
    }
}

/// What nobody was asked for yet, as after a start of the operator, stays as it was told last.
fn keep_unknown(conditions: &mut [Condition], before: &[Condition]) {
    let told_by_routers = |condition: &&mut Condition| {
        [kind::INDEX_CONSISTENT, kind::SCATTER_SCALING].contains(&condition.type_.as_str())
            && condition.status == Is::Unknown.name()
    };
    for condition in conditions.iter_mut().filter(told_by_routers) {
        if let Some(old) = before.iter().find(|old| old.type_ == condition.type_) {
            let observed_generation = condition.observed_generation;
            *condition = Condition { observed_generation, ..old.clone() };
        }
    }
}

/// Names of the workloads of a role (nothing: of the routers) whose pods are not all of the newest template.
fn rolling(facts: &Facts<'_>, role: Option<PoolRole>) -> Vec<String> {
    let names = Names::of(facts.cluster);
    let (kind, workloads): (_, Vec<String>) = match role {
        None => ("Deployment", vec![names.child("router")]),
        Some(role) => {
            let pools = facts.wanted.iter().filter(|(pool, _)| pool.role == role);
            ("StatefulSet", pools.map(|(pool, _)| names.child(&pool.name)).collect())
        }
    };
    let is_rolling = |name: &String| {
        facts.written.contains(name) || facts.observed.child(kind, name).is_some_and(rollout::is_rolling)
    };
    workloads.into_iter().filter(is_rolling).collect()
}

/// Ready and asked for.
struct Counts {
    routers: (i32, i32),
    combine: (i32, i32),
    scatter: (i32, i32),
}

fn of((ready, desired): (i32, i32)) -> String {
    format!("{ready}/{desired}")
}

fn findings(facts: &Facts<'_>, counts: &Counts) -> Vec<Finding> {
    let observed = facts.observed;
    let router = Names::of(facts.cluster).child("router");
    let of_routers = || observed.child("Deployment", &router).and_then(trouble::of_deployment);
    let of_agents =
        || observed.refused.iter().next().map(|(set, told)| trouble::refused("StatefulSet", set, told));
    let trouble = trouble::first(&observed.pods).or_else(of_routers).or_else(of_agents);
    let blocked = facts.faults.iter().find(|fault| fault.blocks).or_else(|| facts.faults.first());
    let available = counts.routers.0 >= 1 && counts.combine.0 >= 1;
    let serving =
        format!("{} routers and {} combine agents are ready", of(counts.routers), of(counts.combine));

    let models = models_loaded(facts, counts, trouble.as_ref());
    let progressing = progressing(facts, counts);
    let degraded = match (blocked, &trouble) {
        (Some(fault), _) => Finding::new(kind::DEGRADED, true, fault.reason, &fault.message),
        (None, Some(trouble)) => Finding::new(kind::DEGRADED, true, trouble.reason, &trouble.message),
        (None, None) => Finding::new(kind::DEGRADED, false, "AsExpected", "nothing needs a human"),
    };
    let whole = counts.routers.0 >= counts.routers.1
        && counts.combine.0 >= counts.combine.1
        && rolling(facts, None).is_empty()
        && rolling(facts, Some(PoolRole::Combine)).is_empty();
    let ready = match (blocked, &trouble) {
        (Some(fault), _) => Finding::new(kind::READY, false, fault.reason, &fault.message),
        (None, _) if whole && available && models.is == Is::True => {
            Finding::new(kind::READY, true, "Serving", serving.clone())
        }
        (None, Some(trouble)) => Finding::new(kind::READY, false, trouble.reason, &trouble.message),
        (None, None) => Finding::new(kind::READY, false, progressing.reason, &progressing.message),
    };
    let reason = if available { "Serving" } else { "NobodyAnswers" };
    let tiers = if counts.combine.0 >= 1 {
        Finding::new(kind::TIERS_READY, true, "Opened", "agents that are ready have opened their tiers")
    } else {
        Finding::new(kind::TIERS_READY, Is::Unknown, "NoAgentReady", "no agent is ready that could tell")
    };
    vec![
        ready,
        Finding::new(kind::AVAILABLE, available, reason, serving),
        progressing,
        models,
        tiers,
        index(facts),
        scaling(facts),
        Finding::new(
            kind::COMPOSITION_DRIFT,
            Is::Unknown,
            "NotMeasured",
            "no request was sampled for its drift",
        ),
        degraded,
    ]
}

fn progressing(facts: &Facts<'_>, counts: &Counts) -> Finding {
    let parts = [
        ("routers", counts.routers),
        ("combine agents", counts.combine),
        ("scatter workers", counts.scatter),
    ];
    if facts.paused {
        let message = "spec.reconciliationPaused is true: nothing is changed";
        return Finding::new(kind::PROGRESSING, false, "Paused", message);
    }
    if let Some(fault) = facts.faults.iter().find(|fault| fault.blocks) {
        return Finding::new(kind::PROGRESSING, false, fault.reason, "what runs is left as it is");
    }
    match parts.iter().find(|(_, (ready, desired))| ready != desired) {
        Some((what, count)) => Finding::new(
            kind::PROGRESSING,
            true,
            "WaitingForPods",
            format!("{} {what} are ready", of(*count)),
        ),
        None => {
            let roles = [None, Some(PoolRole::Combine), Some(PoolRole::Scatter)];
            let rolling: Vec<String> = roles.into_iter().flat_map(|role| rolling(facts, role)).collect();
            if rolling.is_empty() {
                return Finding::new(
                    kind::PROGRESSING,
                    false,
                    "Complete",
                    "all that the spec asks for is ready",
                );
            }
            let message = format!("pods are still to be made anew: {}", rolling.join(", "));
            Finding::new(kind::PROGRESSING, true, "RollingOut", message)
        }
    }
}

fn models_loaded(facts: &Facts<'_>, counts: &Counts, trouble: Option<&Trouble>) -> Finding {
    let kind = kind::MODELS_LOADED;
    if let Some(fault) =
        facts.faults.iter().find(|fault| matches!(fault.reason, "ModelNotFound" | "ClaimNotFound"))
    {
        return Finding::new(kind, false, fault.reason, &fault.message);
    }
    let (ready, desired) = counts.combine;
    if ready >= desired {
        return Finding::new(kind, true, "Loaded", "every combine agent has loaded its model");
    }
    match trouble {
        Some(trouble) if trouble.reason == "ContainerFailed" => {
            Finding::new(kind, false, "LoadFailed", &trouble.message)
        }
        _ => Finding::new(
            kind,
            false,
            "Loading",
            format!("{ready} of {desired} combine agents have loaded their model"),
        ),
    }
}

fn index(facts: &Facts<'_>) -> Finding {
    let kind = kind::INDEX_CONSISTENT;
    if facts.paused {
        return Finding::new(kind, Is::Unknown, "Paused", "nobody is asked while reconciliation is paused");
    }
    let Some(pulse) = facts.pulse.filter(|pulse| pulse.routers_answered > 0) else {
        return Finding::new(kind, Is::Unknown, "NoRouterAnswers", "no router tells how the index is");
    };
    let owners = pulse.agents.iter().filter(|agent| agent.role == AgentRole::Combine);
    let away: Vec<&str> =
        owners.clone().filter(|agent| !agent.usable).map(|agent| agent.id.as_str()).collect();
    if !away.is_empty() {
        return Finding::new(
            kind,
            false,
            "OwnerAway",
            format!("owners of slots do not answer: {}", away.join(", ")),
        );
    }
    match owners.filter(|agent| agent.index_partial > 0).count() {
        0 => Finding::new(kind, true, "Whole", "every owner knows all that holders announced"),
        owners => {
            Finding::new(kind, false, "WaitingForDumps", format!("{owners} owners wait for holders' dumps"))
        }
    }
}

fn scaling(facts: &Facts<'_>) -> Finding {
    let kind = kind::SCATTER_SCALING;
    let scaled: Vec<&str> = facts
        .wanted
        .iter()
        .filter(|(pool, _)| pool.scaling.is_some())
        .map(|(pool, _)| pool.name.as_str())
        .collect();
    if scaled.is_empty() {
        return Finding::new(kind, false, "FixedReplicas", "no pool has scaling");
    }
    if facts.paused {
        return Finding::new(kind, Is::Unknown, "Paused", "the number is left as it is");
    }
    let pulses: Vec<(&str, &ScalingPulse)> =
        scaled.iter().filter_map(|pool| Some((*pool, facts.pulse?.scaling.get(*pool)?))).collect();
    let Some((pool, pulse)) =
        pulses.iter().find(|(_, pulse)| pulse.frozen || pulse.externally.is_some()).or(pulses.first())
    else {
        return Finding::new(kind, Is::Unknown, "NoRouterAnswers", "no router tells of the demand");
    };
    pool_scaling(pool, pulse)
}

fn pool_scaling(pool: &str, pulse: &ScalingPulse) -> Finding {
    let kind = kind::SCATTER_SCALING;
    if let Some(manager) = &pulse.externally {
        let message = format!(
            "pool {pool}: '{manager}' sets spec.replicas of the HypicScatterPool; delete that object to give the number back: it is made anew with as many workers as there are, within the pool's bounds"
        );
        return Finding::new(kind, false, "ExternallyScaled", message);
    }
    Finding::new(kind, !pulse.frozen, pulse.reason, format!("pool {pool}: {}", pulse.message))
}

/// The status of one HypicScatterPool.
pub fn scatter_pool(facts: &Facts<'_>, pool: &NodePool, now: &Time) -> Option<HypicScatterPoolStatus> {
    let object = facts.observed.scatter.get(&pool.name)?;
    let names = Names::of(facts.cluster);
    let before = object.status.clone().unwrap_or_default();
    let pulse = facts.pulse.and_then(|pulse| pulse.scaling.get(&pool.name));
    let generation = object.metadata.generation.unwrap_or_default();
    let unknown = |reason, message| Finding::new(kind::SCATTER_SCALING, Is::Unknown, reason, message);
    let finding = match pulse {
        _ if facts.paused => unknown("Paused", "the number is left as it is"),
        None => unknown("NoRouterAnswers", "no router tells of the demand"),
        Some(pulse) => pool_scaling(&pool.name, pulse),
    };
    let (mut reason, mut message) = (Some(finding.reason.to_owned()), Some(finding.message.clone()));
    let mut recommended = pulse.map(|pulse| pulse.recommended);
    let mut conditions = conditions(&[finding], &before.conditions, generation, now);
    if facts.pulse.is_none() && !facts.paused && before.reason.is_some() {
        keep_unknown(&mut conditions, &before.conditions);
        (reason, message, recommended) = (before.reason, before.message, before.recommended_replicas);
    }
    let pods = facts.observed.pods_with(POOL, &pool.name).count();
    Some(HypicScatterPoolStatus {
        observed_generation: Some(generation),
        replicas: i32::try_from(pods).unwrap_or(i32::MAX),
        ready_replicas: facts.observed.ready(POOL, &pool.name),
        selector: format!(
            "{CLUSTER}={},{POOL}={},app.kubernetes.io/component=scatter",
            names.cluster, pool.name
        ),
        recommended_replicas: recommended,
        reason,
        message,
        conditions,
    })
}
