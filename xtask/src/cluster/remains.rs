//! What a lab has on the machine, found without trusting that it was left in order; and its removal.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::daemon::{is_marked, quietly};
use super::lab::{Lab, STATE};

/// How long killed processes and their cgroups may take to go.
const LIMIT: Duration = Duration::from_secs(20);

/// Everything of a lab that is on the machine.
pub(crate) struct Remains {
    processes: Vec<(u32, String)>,
    mounts: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
    mount_points: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Remains {
    /// Whether nothing is there.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { processes, mounts, cgroups, mount_points, files } = self;
        processes.is_empty()
            && [mounts, cgroups, mount_points, files].into_iter().all(|paths| paths.is_empty())
    }
}

impl fmt::Display for Remains {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "on the machine:")?;
        writeln!(out, "  {} processes", self.processes.len())?;
        for (pid, command) in &self.processes {
            writeln!(out, "    {pid:>7} {command}")?;
        }
        for (what, paths) in [
            ("mounts", &self.mounts),
            ("cgroups", &self.cgroups),
            ("empty folders as mount points", &self.mount_points),
            ("files and folders", &self.files),
        ] {
            let shown: Vec<_> = paths.iter().take(3).map(|path| path.display().to_string()).collect();
            let more = if paths.len() > shown.len() { " .." } else { "" };
            writeln!(out, "  {} {what}: {}{more}", paths.len(), shown.join(" "))?;
        }
        Ok(())
    }
}

/// Looks for all of it.
pub(crate) fn find(lab: &Lab) -> Result<Remains> {
    Ok(Remains {
        processes: processes(lab)?,
        mounts: mounts(lab)?,
        cgroups: cgroups(lab),
        mount_points: mount_points(lab),
        files: fs::read_dir(lab.dir()).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
    })
}

/// Ends and removes all of it; the lab's folder itself stays, empty.
pub(crate) fn clear(lab: &Lab) -> Result<()> {
    let start = Instant::now();
    // From here on it is no cluster any more.
    let complete = lab.dir().join("complete");
    if complete.exists() {
        fs::remove_file(&complete).with_context(|| format!("remove {}", complete.display()))?;
    }
    loop {
        let left = processes(lab)?;
        if left.is_empty() {
            break;
        }
        if start.elapsed() > LIMIT {
            bail!("these processes do not end: {left:?}");
        }
        let pids = left.iter().map(|(pid, _)| pid.to_string());
        // Those that ended meanwhile make kill complain.
        let _ = Command::new("kill").arg("-KILL").args(pids).output();
        sleep(Duration::from_millis(100));
    }
    for root in cgroups(lab) {
        while !remove_cgroup(&root) {
            if start.elapsed() > LIMIT {
                bail!("the cgroup {} stays busy", root.display());
            }
            sleep(Duration::from_millis(100));
        }
    }
    for mount in mounts(lab)?.iter().rev() {
        quietly(Command::new("umount").arg("--lazy").arg(mount))?;
    }
    if let Some(mount) = mounts(lab)?.first() {
        bail!("{} is still mounted; nothing below it was removed", mount.display());
    }
    for entry in fs::read_dir(lab.dir()).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    for point in mount_points(lab).iter().rev() {
        // Somebody else's files may be in it by now.
        let _ = fs::remove_dir(point);
    }
    if !has_neighbours(lab) {
        let _ = fs::remove_file(mount_points_file());
    }
    Ok(())
}

/// Makes the folders that private copies are mounted on, and writes down which ones were missing.
pub(crate) fn make_mount_points(points: &[&str]) -> Result<()> {
    let file = mount_points_file();
    let mut made = fs::read_to_string(&file).unwrap_or_default();
    let mut missing: Vec<&Path> =
        points.iter().flat_map(|point| Path::new(point).ancestors()).filter(|path| !path.exists()).collect();
    missing.sort();
    missing.dedup();
    for path in missing {
        made += &format!("{}\n", path.display());
    }
    fs::write(&file, made).with_context(|| format!("write {}", file.display()))?;
    for point in points {
        fs::create_dir_all(point).with_context(|| format!("create {point}"))?;
    }
    Ok(())
}

/// All labs of the machine mount on the same folders.
fn mount_points_file() -> PathBuf {
    Path::new(STATE).join("mount-points")
}

/// Folders that labs made to mount on, outer ones first. The last lab removes them: a folder that goes away takes
/// every mount on it along, in other namespaces too.
fn mount_points(lab: &Lab) -> Vec<PathBuf> {
    if has_neighbours(lab) {
        return Vec::new();
    }
    let text = fs::read_to_string(mount_points_file()).unwrap_or_default();
    text.lines().map(PathBuf::from).filter(|path| path.exists()).collect()
}

/// Whether another lab has files here.
fn has_neighbours(lab: &Lab) -> bool {
    let entries = fs::read_dir(STATE).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).any(|entry| entry.path() != lab.dir())
}

/// Processes that the lab started, and those that others started in its networks, except us and our parents.
fn processes(lab: &Lab) -> Result<Vec<(u32, String)>> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let networks: HashSet<_> = fs::read_dir(lab.dir().join("net"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| identity(&entry.path()))
        .collect();
    let spared = ourselves();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list the processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if spared.contains(&pid) {
            continue;
        }
        let inside =
            identity(&entry.path().join("ns/net")).is_some_and(|network| networks.contains(&network));
        if inside || is_marked(lab, pid) {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            found.push((pid, words.join(" ").chars().take(90).collect()));
        }
    }
    Ok(found)
}

fn ourselves() -> HashSet<u32> {
    let mut pids = HashSet::new();
    let mut pid = std::process::id();
    while pid > 0 && pids.insert(pid) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
    }
    pids
}

/// Mounts below the lab's folder, outer ones first.
fn mounts(lab: &Lab) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let dir = lab.dir();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(&dir)).collect())
}

/// The nodes' cgroups in every hierarchy.
fn cgroups(lab: &Lab) -> Vec<PathBuf> {
    let prefix = format!("hypic-{}-n", lab.name());
    let list = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)) && path.is_dir()
    };
    list(Path::new("/sys/fs/cgroup")).iter().flat_map(|hierarchy| list(hierarchy)).filter(is_ours).collect()
}

/// Removes a cgroup and those below it; false while one of them is busy.
fn remove_cgroup(path: &Path) -> bool {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    fs::remove_dir(path).is_ok() || !path.exists()
}
