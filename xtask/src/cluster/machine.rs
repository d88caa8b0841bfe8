//! What the lab needs of the machine, said before anything is started.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell::on_path;

/// Capability, its bit, and what for.
const CAPABILITIES: [(&str, u32, &str); 4] = [
    ("CAP_NET_ADMIN", 12, "makes the nodes' links"),
    ("CAP_SYS_CHROOT", 18, "enters the nodes"),
    ("CAP_SYS_ADMIN", 21, "makes namespaces and mounts"),
    ("CAP_MKNOD", 27, "makes containers' devices"),
];
/// Hierarchies of cgroup v1 that containers are put in.
const HIERARCHIES: [&str; 7] = ["blkio", "cpu", "cpuset", "devices", "freezer", "memory", "pids"];
/// Program, and where it comes from.
const PROGRAMS: [(&str, &str); 8] = [
    ("go", "the Go toolchain 1.26 or newer"),
    ("python3", "Python 3.9 or newer, with pip"),
    ("gcc", "gcc with a static libc"),
    ("strip", "binutils"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
];

/// Fails with everything that is missing.
pub(crate) fn check() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let filesystems = fs::read_to_string("/proc/filesystems").context("read /proc/filesystems")?;
    let mut faults = rights(&status);
    if !filesystems.contains("overlay") {
        faults.push(
            "the kernel has no overlayfs (see /proc/filesystems): containers' file systems need it".into(),
        );
    }
    let missing: Vec<&str> = HIERARCHIES
        .into_iter()
        .filter(|name| !Path::new("/sys/fs/cgroup").join(name).join("cgroup.procs").exists())
        .collect();
    if !missing.is_empty() {
        faults.push(format!(
            "no cgroup v1 mounts for {} in /sys/fs/cgroup: the lab's containers run under cgroup v1",
            missing.join(", ")
        ));
    }
    if !Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists() {
        faults
            .push("bridged packets do not pass iptables, which Services need: modprobe br_netfilter".into());
    }
    for (program, package) in PROGRAMS {
        if !on_path(program) {
            faults.push(format!("'{program}' is not on the PATH: install {package}"));
        }
    }
    if !faults.is_empty() {
        bail!(
            "this machine cannot run the lab:\n- {}\nInstead: '--cluster kind' (needs docker and kind), '--cluster current' (your KUBECONFIG), or 'cargo xtask up --local' (no cluster)",
            faults.join("\n- ")
        );
    }
    Ok(())
}

/// What `/proc/self/status` says that we may not do.
fn rights(status: &str) -> Vec<String> {
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let mut faults = Vec::new();
    if !field("Uid:").starts_with("0\t") {
        faults.push("not root: start it with sudo".to_owned());
    }
    let held = u64::from_str_radix(field("CapEff:"), 16).unwrap_or_default();
    for (name, bit, what) in CAPABILITIES {
        if held & (1 << bit) == 0 {
            faults.push(format!("no {name}, which {what}: start the container with more rights"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_machine_may() {
        assert!(rights("Uid:\t0\t0\t0\t0\nCapEff:\t000001fffeffffff\n").is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let faults = rights("Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000001000\n").join("\n");
        assert!(faults.contains("not root") && faults.contains("CAP_SYS_ADMIN"), "{faults}");
        assert!(!faults.contains("CAP_NET_ADMIN"), "{faults}");
    }
}
