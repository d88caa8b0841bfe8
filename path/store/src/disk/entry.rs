//! How a tuple lies on a drive: two files, `KEY-SERIAL.parts` and `KEY-SERIAL.manifest`.
//!
//! The serial differs for every write, so that deleting an old entry late can never hit a newer one of the same
//! key. The manifest file is renamed into place last: where it is, the parts are whole.

use std::io;

use bytes::Bytes;
use hypic_domain::key::SegmentKey;
use hypic_domain::unit::Millis;
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::{Manifest, Part};
use crate::disk::drive::DiskIo;
use crate::error::StoreError;
use crate::evict::{Class, Heat, Owner, Standing};
use crate::tuple::StoredTuple;

/// Owner, saved time and their sum in front of the manifest: what the policy must know after a restart.
pub(crate) const PREAMBLE: u64 = 24;
/// Longest manifest file: a file over it is not ours.
const MANIFEST_LIMIT: u64 = 64 << 20;

/// Which file of which entry a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Parts,
    Manifest,
    Unfinished,
}

/// One write of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) key: SegmentKey,
    pub(crate) serial: u64,
}

/// Why an entry was not read.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// It will never be read.
    Damaged(StoreError),
    /// It may be read later.
    Passing(io::Error),
}

impl Entry {
    pub(crate) fn name(&self, kind: FileKind) -> String {
        let ending = match kind {
            FileKind::Parts => "parts",
            FileKind::Manifest => "manifest",
            FileKind::Unfinished => "tmp",
        };
        format!("{}-{:016x}.{ending}", self.key, self.serial)
    }

    /// The entry and file that a name stands for; `None` for a name that is not ours.
    pub(crate) fn parse(name: &str) -> Option<(Self, FileKind)> {
        let (stem, ending) = name.split_once('.')?;
        let (digest, serial) = stem.split_once('-')?;
        let mut key = SegmentKey([0; 32]);
        hex::decode_to_slice(digest, &mut key.0).ok()?;
        let entry = Self { key, serial: u64::from_str_radix(serial, 16).ok()? };
        let kinds = [FileKind::Parts, FileKind::Manifest, FileKind::Unfinished];
        let kind = kinds.into_iter().find(|kind| entry.name(*kind) == name);
        kind.filter(|_| ending.is_ascii()).map(|kind| (entry, kind))
    }

    /// Writes the parts, then the manifest, each whole on the drive before the next step.
    pub(crate) fn write(&self, io: &dyn DiskIo, tuple: &StoredTuple, standing: &Standing) -> io::Result<()> {
        let parts: Vec<&[u8]> = tuple.parts().iter().map(|part| &part.bytes()[..]).collect();
        io.write(&self.name(FileKind::Parts), &parts)?;
        let preamble = preamble(standing);
        let unfinished = self.name(FileKind::Unfinished);
        io.write(&unfinished, &[&preamble, tuple.encoded_manifest()])?;
        io.rename(&unfinished, &self.name(FileKind::Manifest))?;
        io.sync()
    }

    /// Reads and checks the manifest.
    pub(crate) fn read_manifest(&self, io: &dyn DiskIo) -> Result<(Manifest, Standing), ReadFault> {
        let bytes = io.read(&self.name(FileKind::Manifest), PREAMBLE..=MANIFEST_LIMIT).map_err(fault)?;
        let (preamble, manifest) = bytes.split_at(PREAMBLE as usize);
        let damaged = |what| ReadFault::Damaged(StoreError::ReadManifest { what });
        let standing = read_preamble(preamble).ok_or(damaged("wrong preamble"))?;
        let manifest = Manifest::decode(manifest).map_err(ReadFault::Damaged)?;
        if manifest.head.key != self.key {
            return Err(damaged("another key"));
        }
        Ok((manifest, standing))
    }

    /// Reads the whole tuple and compares every sum.
    pub(crate) fn read(&self, io: &dyn DiskIo) -> Result<StoredTuple, ReadFault> {
        let (manifest, _) = self.read_manifest(io)?;
        let len = manifest.part_bytes().0;
        let bytes = Bytes::from(io.read(&self.name(FileKind::Parts), len..=len).map_err(fault)?);
        let parts = manifest.parts.iter().map(|spec| {
            // The file has the length of all parts together, and they lie one behind the other.
            let (start, end) = (spec.offset as usize, (spec.offset + spec.len) as usize);
            Part::check(spec.clone(), bytes.slice(start..end))
        });
        let parts = parts.collect::<Result<_, _>>().map_err(ReadFault::Damaged)?;
        StoredTuple::assemble(manifest, parts).map_err(ReadFault::Damaged)
    }
}

/// A file that is gone, cut, or no file at all is damage; everything else may pass.
fn fault(error: io::Error) -> ReadFault {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "a file is missing",
        io::ErrorKind::UnexpectedEof => "a file is cut short",
        io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory => "not a file of the right length",
        // A link where a file should be.
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => "a link is no file",
        _ => return ReadFault::Passing(error),
    };
    ReadFault::Damaged(StoreError::Assemble { what })
}

fn preamble(standing: &Standing) -> [u8; PREAMBLE as usize] {
    let mut bytes = [0; PREAMBLE as usize];
    bytes[..8].copy_from_slice(&standing.owner.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&standing.saved.0.to_le_bytes());
    let sum = xxh3_64(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn read_preamble(bytes: &[u8]) -> Option<Standing> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let saved = f64::from_bits(word(8)?);
    let right = word(16)? == xxh3_64(bytes.get(..16)?) && saved.is_finite();
    // Only what has proven itself is written.
    let standing =
        Standing { owner: Owner(word(0)?), class: Class::Proven, saved: Millis(saved), heat: Heat::COLD };
    right.then_some(standing)
}
