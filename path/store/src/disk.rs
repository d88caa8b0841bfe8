//! The disk tier: tuples on a local drive that survive a restart and every fault of the drive.
//!
//! What goes wrong never reaches an answer: a damaged entry is dropped alone, an error that may pass is a miss
//! and keeps the entry, a full drive evicts and goes on. No I/O happens under the lock.

mod drive;
mod entry;
mod scan;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::unit::Bytes;

pub use drive::{DiskIo, Drive};

use crate::disk::entry::{Entry, FileKind, PREAMBLE, ReadFault};
use crate::error::StoreError;
use crate::evict::{Limits, Ranking, Standing};
use crate::faults::{Count, FaultCounts};
use crate::tier::{Evicted, TierStore, Usage};
use crate::tuple::StoredTuple;

/// Tuples in the files of one folder.
pub struct DiskTier {
    io: Box<dyn DiskIo>,
    limits: Limits,
    index: Mutex<Index>,
    corrupt: Count,
    unreadable: Count,
    disk_full: Count,
    write_failed: Count,
    remove_failed: Count,
    orphans: Count,
}

/// What lies in the folder, as far as this process knows.
#[derive(Default)]
struct Index {
    ranking: Ranking,
    serials: HashMap<SegmentKey, u64>,
    /// Keys being written, and their bytes, which count against the cap already.
    writing: HashSet<SegmentKey>,
    reserved: u64,
    next_serial: u64,
    full: bool,
}

impl Index {
    fn remove(&mut self, key: &SegmentKey) -> Option<(Entry, Standing)> {
        let serial = self.serials.remove(key)?;
        Some((Entry { key: *key, serial }, self.ranking.remove(key)?))
    }

    fn entry(&self, key: &SegmentKey) -> Option<Entry> {
        self.serials.get(key).map(|serial| Entry { key: *key, serial: *serial })
    }

    fn insert(&mut self, entry: Entry, standing: Standing, bytes: u64) {
        self.serials.insert(entry.key, entry.serial);
        self.ranking.insert(entry.key, standing, bytes);
    }
}

impl DiskTier {
    /// Takes over what lies in `folder` and deletes what earlier lives left half done. Unknown files stay.
    ///
    /// # Errors
    /// [`StoreError::OpenFolder`].
    pub fn open(folder: &Path, limits: Limits) -> Result<Self, StoreError> {
        let wrong = |source| StoreError::OpenFolder { folder: folder.to_owned(), source };
        Self::over(Box::new(Drive::open(folder).map_err(wrong)?), limits).map_err(wrong)
    }

    /// The same over any file operations.
    ///
    /// # Errors
    /// As the system says when the folder is listed.
    pub fn over(io: Box<dyn DiskIo>, limits: Limits) -> io::Result<Self> {
        let found = scan::scan(&*io)?;
        let mut index = Index { next_serial: found.next_serial, ..Index::default() };
        for (entry, standing, bytes) in found.entries {
            index.insert(entry, standing, bytes);
        }
        let tier = Self {
            io,
            limits,
            index: Mutex::new(index),
            corrupt: Count::default(),
            unreadable: Count::default(),
            disk_full: Count::default(),
            write_failed: Count::default(),
            remove_failed: Count::default(),
            orphans: Count::default(),
        };
        for name in found.orphans {
            tier.orphans.add();
            tier.remove_file(&name);
        }
        tier.shrink_to_cap();
        Ok(tier)
    }

    /// Keys of all entries.
    pub fn keys(&self) -> Vec<SegmentKey> {
        self.index().serials.keys().copied().collect()
    }

    /// The last write found the drive full.
    pub fn is_full(&self) -> bool {
        self.index().full
    }

    /// What went wrong so far.
    pub fn faults(&self) -> FaultCounts {
        FaultCounts {
            corrupt: self.corrupt.now(),
            unreadable: self.unreadable.now(),
            disk_full: self.disk_full.now(),
            write_failed: self.write_failed.now(),
            remove_failed: self.remove_failed.now(),
            orphans: self.orphans.now(),
            mismatch: 0,
        }
    }

    // A panic under the lock cannot leave the index half changed: its steps do not panic.
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cap that was lowered between two lives holds from the start.
    fn shrink_to_cap(&self) {
        loop {
            let mut index = self.index();
            if index.ranking.used() <= self.limits.cap {
                return;
            }
            let Some(entry) = index.ranking.first().and_then(|key| index.remove(&key)) else { return };
            drop(index);
            self.remove_files(&entry.0);
        }
    }

    /// The manifest first: parts without one are an orphan, a manifest without parts would be damage.
    fn remove_files(&self, entry: &Entry) {
        self.remove_file(&entry.name(FileKind::Manifest));
        self.remove_file(&entry.name(FileKind::Parts));
    }

    fn remove_file(&self, name: &str) {
        match self.io.remove(name) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(name, %error, "a file of the disk tier cannot be deleted");
                self.remove_failed.add();
            }
        }
    }

    /// Takes entries out of the index and off the drive.
    fn evict(&self, mut index: MutexGuard<'_, Index>, victims: &[SegmentKey], evicted: &mut Vec<Evicted>) {
        let gone: Vec<_> = victims.iter().filter_map(|key| index.remove(key)).collect();
        drop(index);
        for (entry, standing) in gone {
            self.remove_files(&entry);
            evicted.push(Evicted { key: entry.key, standing, tuple: None });
        }
    }

    /// Writes, and while the drive is full makes room and tries again.
    fn write(
        &self,
        entry: &Entry,
        tuple: &StoredTuple,
        standing: &Standing,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), StoreError> {
        loop {
            let Err(source) = entry.write(&*self.io, tuple, standing) else { return Ok(()) };
            for kind in [FileKind::Unfinished, FileKind::Manifest, FileKind::Parts] {
                self.remove_file(&entry.name(kind));
            }
            let full = matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if !full {
                self.write_failed.add();
                return Err(StoreError::WriteTuple { key: entry.key, source });
            }
            self.disk_full.add();
            let mut index = self.index();
            index.full = true;
            // As many bytes as are needed, or the last entries there are; then it is tried once more.
            let limits = Limits { cap: index.ranking.used().max(tuple.bytes()), quota: u64::MAX };
            let victims = index.ranking.victims(tuple.bytes(), standing.owner, limits, |_| false);
            match victims {
                Some(victims) if !victims.is_empty() => self.evict(index, &victims, evicted),
                _ => return Err(StoreError::FillDisk { key: entry.key, source }),
            }
        }
    }
}

impl TierStore for DiskTier {
    fn tier(&self) -> Tier {
        Tier::Disk
    }

    fn put(
        &self,
        tuple: &StoredTuple,
        standing: &Standing,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), StoreError> {
        let (key, bytes) = (*tuple.key(), tuple.bytes() + PREAMBLE);
        let mut index = self.index();
        if index.serials.contains_key(&key) || index.writing.contains(&key) {
            drop(index);
            self.rank(&key, standing);
            return Ok(());
        }
        let limits = Limits { cap: self.limits.cap.saturating_sub(index.reserved), ..self.limits };
        let victims = index.ranking.victims(bytes, standing.owner, limits, |_| false);
        let victims = victims.ok_or(StoreError::MakeRoom { tier: Tier::Disk, bytes })?;
        index.writing.insert(key);
        index.reserved += bytes;
        let entry = Entry { key, serial: index.next_serial };
        index.next_serial += 1;
        self.evict(index, &victims, evicted);

        let written = self.write(&entry, tuple, standing, evicted);
        let mut index = self.index();
        index.writing.remove(&key);
        index.reserved -= bytes;
        if written.is_ok() {
            index.full = false;
            index.insert(entry, *standing, bytes);
        }
        written
    }

    fn get(&self, key: &SegmentKey) -> Result<Option<StoredTuple>, StoreError> {
        let Some(entry) = self.index().entry(key) else { return Ok(None) };
        match entry.read(&*self.io) {
            Ok(tuple) => Ok(Some(tuple)),
            Err(ReadFault::Passing(source)) => {
                self.unreadable.add();
                Err(StoreError::ReadTuple { key: *key, source })
            }
            Err(ReadFault::Damaged(source)) => {
                let mut index = self.index();
                if index.entry(key) != Some(entry) {
                    // It was evicted while it was being read.
                    return Ok(None);
                }
                index.remove(key);
                drop(index);
                self.corrupt.add();
                self.remove_files(&entry);
                Err(StoreError::CheckTuple { key: *key, source: Box::new(source) })
            }
        }
    }

    fn standing(&self, key: &SegmentKey) -> Option<Standing> {
        self.index().ranking.standing(key)
    }

    fn bytes_of(&self, key: &SegmentKey) -> Option<Bytes> {
        self.index().ranking.bytes(key).map(Bytes)
    }

    fn rank(&self, key: &SegmentKey, standing: &Standing) {
        let mut index = self.index();
        if let Some(bytes) = index.ranking.bytes(key) {
            index.ranking.insert(*key, *standing, bytes);
        }
    }

    fn remove(&self, key: &SegmentKey) -> Option<Evicted> {
        let (entry, standing) = self.index().remove(key)?;
        self.remove_files(&entry);
        Some(Evicted { key: *key, standing, tuple: None })
    }

    fn usage(&self) -> Usage {
        let index = self.index();
        Usage {
            tier: Tier::Disk,
            entries: index.ranking.len(),
            bytes: Bytes(index.ranking.used() + index.reserved),
            cap: Bytes(self.limits.cap),
        }
    }
}

#[cfg(test)]
mod tests;
