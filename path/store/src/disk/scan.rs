//! What a folder holds when the process starts.

use std::collections::HashMap;
use std::io;

use crate::disk::drive::DiskIo;
use crate::disk::entry::{Entry, FileKind, PREAMBLE, ReadFault};
use crate::evict::Standing;

/// What the scan found and what it would delete. Files that are not ours appear in neither.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Whole entries with their standing and bytes, one per key.
    pub(crate) entries: Vec<(Entry, Standing, u64)>,
    /// Names of left-over files.
    pub(crate) orphans: Vec<String>,
    /// A serial above all that were seen.
    pub(crate) next_serial: u64,
}

pub(crate) fn scan(io: &dyn DiskIo) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut manifests: HashMap<_, Entry> = HashMap::new();
    let mut parts: HashMap<Entry, u64> = HashMap::new();
    for (name, len) in io.list()? {
        let Some((entry, kind)) = Entry::parse(&name) else { continue };
        scan.next_serial = scan.next_serial.max(entry.serial.saturating_add(1));
        match kind {
            FileKind::Unfinished => scan.orphans.push(name),
            FileKind::Parts => {
                parts.insert(entry, len);
            }
            FileKind::Manifest => {
                let newest = manifests.entry(entry.key).or_insert(entry);
                if newest.serial < entry.serial {
                    scan.orphans.push(newest.name(FileKind::Manifest));
                    *newest = entry;
                } else if newest.serial > entry.serial {
                    scan.orphans.push(name);
                }
            }
        }
    }
    for entry in manifests.into_values() {
        let len = parts.remove(&entry);
        match entry.read_manifest(io) {
            Ok((manifest, standing)) if len == Some(manifest.part_bytes().0) => {
                let bytes = manifest.part_bytes().0 + manifest.encode().len() as u64 + PREAMBLE;
                scan.entries.push((entry, standing, bytes));
            }
            // A drive that does not answer is no reason to delete: the files wait for the next start.
            Err(ReadFault::Passing(_)) => {}
            Ok(_) | Err(ReadFault::Damaged(_)) => {
                scan.orphans.push(entry.name(FileKind::Manifest));
                scan.orphans.extend(len.map(|_| entry.name(FileKind::Parts)));
            }
        }
    }
    scan.orphans.extend(parts.keys().map(|entry| entry.name(FileKind::Parts)));
    Ok(scan)
}
