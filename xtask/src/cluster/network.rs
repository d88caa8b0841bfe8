//! The lab's network: one namespace with a bridge as switch, one namespace per node, no way out and no link in
//! the machine's own.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::daemon::quietly;
use super::lab::{ADDRESS, Lab, enter};
use super::node::Node;

/// Makes the namespaces, links and routes.
pub(crate) fn make(lab: &Lab, nodes: &[Node]) -> Result<()> {
    let switch = lab.network("switch");
    namespace(&switch)?;
    ip(&switch, "link add br0 type bridge")?;
    ip(&switch, &format!("addr add {ADDRESS}/24 dev br0"))?;
    ip(&switch, "link set br0 up")?;
    // A Service's address needs a route before kube-proxy turns it into a pod's.
    ip(&switch, "route add 10.96.0.0/16 dev br0")?;
    for node in nodes {
        let (own, number) = (node.network(), node.number());
        namespace(&own)?;
        ip(&switch, &format!("link add v{number} type veth peer name eth0 netns {}", own.display()))?;
        ip(&switch, &format!("link set v{number} master br0 up"))?;
        ip(&own, &format!("addr add {}/24 dev eth0", node.address()))?;
        ip(&own, "link set eth0 up")?;
        // The kubelet looks for a default route; the switch forwards nowhere.
        ip(&own, &format!("route add default via {ADDRESS}"))?;
        ip(&switch, &format!("route add {} via {}", node.pod_cidr(), node.address()))?;
    }
    for node in nodes {
        for other in nodes.iter().filter(|other| other.number() != node.number()) {
            ip(&node.network(), &format!("route add {} via {}", other.pod_cidr(), other.address()))?;
        }
    }
    Ok(())
}

/// Cuts a node off, or brings it back.
pub(crate) fn link(lab: &Lab, number: u8, state: &str) -> Result<()> {
    lab.need_running()?;
    let nodes = lab.nodes();
    if !nodes.iter().any(|node| node.number() == number) {
        bail!("there is no node {number}: the lab has nodes 1 to {}", nodes.len());
    }
    ip(&lab.network("switch"), &format!("link set v{number} {state}"))
}

fn namespace(file: &Path) -> Result<()> {
    File::create(file).with_context(|| format!("create {}", file.display()))?;
    quietly(Command::new("unshare").arg(enter(file)).arg("true"))?;
    ip(file, "link set lo up")
}

fn ip(namespace: &Path, arguments: &str) -> Result<()> {
    quietly(Command::new("nsenter").arg(enter(namespace)).args(["--", "ip"]).args(arguments.split(' ')))
}
