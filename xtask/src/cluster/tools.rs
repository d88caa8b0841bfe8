//! Programs that the lab takes from packages.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use super::cache::{folder, retry};
use crate::{debian, helm};

/// Program or file that shows that a Debian package is there, and the package.
const PACKAGES: [(&str, &str); 12] = [
    ("curl", "curl"),
    ("sysctl", "procps"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("socat", "socat"),
    ("ethtool", "ethtool"),
    ("ipset", "ipset"),
    ("prometheus", "prometheus"),
];

/// Folder with kubectl and helm, for the PATH.
pub(crate) fn clients() -> PathBuf {
    folder().join("bin")
}

/// The PATH with them first.
pub(crate) fn path() -> OsString {
    let mut path = clients().into_os_string();
    #[expect(clippy::disallowed_methods, reason = "the PATH is handed on, not a setting of ours")]
    if let Ok(rest) = std::env::var("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Installs the Debian packages that are missing.
pub(crate) fn packages() -> Result<()> {
    retry("install packages", || debian::install(&PACKAGES))
}

/// Downloads kubectl and helm unless they are there.
pub(crate) fn download_clients() -> Result<()> {
    retry("download kubectl and helm", || helm::install().map(drop))
}
