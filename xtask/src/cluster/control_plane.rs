//! etcd, the API server, the controllers and the scheduler, in the lab's switch namespace.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::daemon::{self, Daemon, quietly, running, succeeds};
use super::go;
use super::lab::{ADDRESS, Lab, configuration};
use super::node::{Node, enforce_policies};
use crate::shell::root;

const ETCD: &str = "http://127.0.0.1:2379";

/// A kubelet without local storage isolation reports no ephemeral storage, and pods that ask for some would never be
/// scheduled. It keeps what is told here and allots it.
const STORAGE: &str = r#"{"status":{"capacity":{"ephemeral-storage":"40Gi"}}}"#;

/// Makes the CA, the certificates and the kubeconfigs.
pub(crate) fn certificates(lab: &Lab, nodes: &[Node]) -> Result<()> {
    let mut script = Command::new("bash");
    script.arg(root().join("e2e/cluster/pki.sh")).arg(lab.pki()).args(nodes.iter().map(Node::name));
    quietly(&mut script)
}

/// Starts the servers and waits until the API is ready.
pub(crate) fn start(lab: &Lab) -> Result<()> {
    start_etcd(lab)?;
    start_apiserver(lab)?;
    // Both exit if the API server has not made its bootstrap roles yet.
    let client = |server: &str| {
        let config = lab.pki().join(server).with_extension("kubeconfig");
        let mut command = lab.inside(go::kube());
        command.arg(server).arg("--kubeconfig").arg(&config);
        command
            .arg("--authentication-kubeconfig")
            .arg(&config)
            .arg("--authorization-kubeconfig")
            .arg(&config);
        command.args(["--bind-address=127.0.0.1", "--leader-elect=false"]);
        command
    };
    let mut controllers = client("controller-manager");
    controllers.arg("--service-account-private-key-file").arg(lab.pki().join("service-accounts.key"));
    controllers.arg("--root-ca-file").arg(lab.pki().join("ca.crt"));
    // Made if it is missing, and by default outside of the lab's folder.
    controllers.arg("--flex-volume-plugin-dir").arg(lab.dir().join("volume-plugins"));
    controllers.args(["--use-service-account-credentials", "--allocate-node-cidrs=false"]);
    controllers.args(["--cluster-cidr=10.88.0.0/16", "--node-monitor-grace-period=16s"]);
    controllers.arg("--horizontal-pod-autoscaler-sync-period=5s");
    daemon::start(lab, "controller-manager", controllers)?;
    daemon::start(lab, "scheduler", client("scheduler"))?;
    Ok(())
}

fn start_etcd(lab: &Lab) -> Result<()> {
    let mut etcd = lab.inside(go::kube());
    etcd.arg("etcd").arg("--data-dir").arg(lab.dir().join("etcd"));
    etcd.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
    // Nothing here outlives the machine.
    etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level", "warn"]);
    daemon::start(lab, "etcd", etcd)?;
    Ok(())
}

/// Starts the API server on what etcd has, unless it runs.
pub(crate) fn start_apiserver(lab: &Lab) -> Result<()> {
    if running(lab, "apiserver").is_some() {
        return Ok(());
    }
    let policy = lab.dir().join("audit.yaml");
    fs::write(&policy, configuration("audit.yaml", &[])?)
        .with_context(|| format!("write {}", policy.display()))?;
    let pki = |name: &str| lab.pki().join(name);
    let files: [(&str, PathBuf); 14] = [
        ("audit-policy-file", policy),
        ("audit-log-path", lab.log("audit")),
        ("client-ca-file", pki("ca.crt")),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
        ("kubelet-client-certificate", pki("apiserver-kubelet.crt")),
        ("kubelet-client-key", pki("apiserver-kubelet.key")),
        ("service-account-key-file", pki("service-accounts.pub")),
        ("service-account-signing-key-file", pki("service-accounts.key")),
        ("requestheader-client-ca-file", pki("front-ca.crt")),
        ("proxy-client-cert-file", pki("front-proxy.crt")),
        ("proxy-client-key-file", pki("front-proxy.key")),
        ("etcd-servers", ETCD.into()),
        ("bind-address", ADDRESS.into()),
    ];
    let mut server = lab.inside(go::kube());
    server.arg("apiserver");
    for (flag, value) in files {
        server.arg(format!("--{flag}")).arg(value);
    }
    server.args([
        "--secure-port=6443",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--audit-log-mode=blocking",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        // Node names do not resolve: without this 'logs' and 'exec' fail.
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-aggregator-routing",
        "--allow-privileged",
        "--profiling=false",
    ]);
    let mut server = daemon::start(lab, "apiserver", server)?;
    daemon::wait(&mut server, "the API is ready", Duration::from_secs(120), || answers(lab))
}

/// Kills the API server; etcd keeps the data, the controllers keep trying.
pub(crate) fn stop_apiserver(lab: &Lab) -> Result<()> {
    let Some(pid) = running(lab, "apiserver") else { return Ok(()) };
    quietly(Command::new("kill").args(["-KILL", &pid.to_string()]))?;
    for _ in 0..100 {
        if running(lab, "apiserver").is_none() {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    bail!("the API server (process {pid}) does not end")
}

/// Whether the API server is ready.
pub(crate) fn answers(lab: &Lab) -> bool {
    succeeds(lab.client("kubectl").args(["get", "--raw=/readyz", "--request-timeout=5s"]))
}

/// Waits for the nodes, has policies enforced, gives Service addresses to the switch namespace, and waits for the
/// cluster's names.
pub(crate) fn addons(lab: &Lab, nodes: &[Node]) -> Result<()> {
    let kubectl = |arguments: &[&str]| quietly(lab.client("kubectl").args(arguments));
    for node in nodes {
        wait_for_node(lab, node)?;
        let name = node.name();
        kubectl(&["patch", "node", &name, "--subresource=status", "--type=merge", "--patch", STORAGE])?;
        enforce_policies(node)?;
    }
    proxy(lab, nodes)?;
    let addons = root().join("e2e/cluster/addons.yaml");
    quietly(lab.client("kubectl").args(["apply", "--server-side", "--filename"]).arg(addons))?;
    kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"])?;
    kubectl(&["--namespace=kube-system", "rollout", "status", "daemonset/coredns", "--timeout=120s"])
}

fn wait_for_node(lab: &Lab, node: &Node) -> Result<()> {
    let name = node.name();
    for _ in 0..150 {
        if succeeds(lab.client("kubectl").args(["get", "node", &name])) {
            return Ok(());
        }
        sleep(Duration::from_millis(200));
    }
    bail!("{name} did not register within 30 s: see {}", lab.log(&format!("{name}-kubelet")).display())
}

/// A kube-proxy for what runs beside the control plane: tests, Prometheus, the API server's calls of webhooks.
/// It goes by the name of a node, because it has none.
fn proxy(lab: &Lab, nodes: &[Node]) -> Result<Option<Daemon>> {
    let Some(node) = nodes.first() else { return Ok(None) };
    let (pki, name) = (lab.pki(), node.name());
    let values = [("PKI", pki.to_string_lossy()), ("ADDRESS", ADDRESS.into()), ("NODE", name.into())];
    let values = values.each_ref().map(|(name, value)| (*name, value.as_ref()));
    let file = lab.dir().join("proxy.yaml");
    fs::write(&file, configuration("proxy.yaml", &values)?)
        .with_context(|| format!("write {}", file.display()))?;
    let mut command = lab.inside(go::kube());
    command.arg("proxy").arg("--config").arg(file);
    daemon::start(lab, "proxy", command).map(Some)
}
