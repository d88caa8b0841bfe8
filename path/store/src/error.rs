//! Everything that can go wrong with a tuple's bytes or with the place where they lie.

use std::io;
use std::path::PathBuf;

use hypic_domain::key::SegmentKey;
use hypic_domain::tier::Tier;
use hypic_domain::tuple::PartKind;

/// A refusal of the codec or of a tier. None of them is fatal: the caller recomputes.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The bytes are not a manifest, or one that contradicts itself.
    #[error("malformed manifest: {what}")]
    ReadManifest {
        /// What is wrong.
        what: &'static str,
    },
    /// The manifest is of a version that this reader does not know.
    #[error("manifest version {found} is not between {oldest} and {newest}")]
    ReadVersion {
        /// The version found.
        found: u16,
        /// Oldest version read.
        oldest: u16,
        /// Newest version read.
        newest: u16,
    },
    /// A layer was pushed out of order or with the wrong contents.
    #[error("layer {layer} cannot be written: {what}")]
    PushLayer {
        /// The layer that is due.
        layer: u16,
        /// Why not.
        what: &'static str,
    },
    /// A value is NaN or infinite: caching it would spread it.
    #[error("part {kind:?} of layer {layer} holds a value that is not finite")]
    StoreValues {
        /// Layer of the model.
        layer: u16,
        /// Which part.
        kind: PartKind,
    },
    /// A part has the wrong length.
    #[error("part {kind:?} of layer {layer} has {found} bytes")]
    CheckLength {
        /// Layer of the model.
        layer: u16,
        /// Which part.
        kind: PartKind,
        /// Bytes found.
        found: u64,
    },
    /// A part's bytes do not have the sum of its spec.
    #[error("part {kind:?} of layer {layer} has a wrong sum")]
    CheckSum {
        /// Layer of the model.
        layer: u16,
        /// Which part.
        kind: PartKind,
    },
    /// The parts are not the manifest's.
    #[error("parts do not make up the manifest: {what}")]
    Assemble {
        /// What does not fit.
        what: &'static str,
    },
    /// A tier cannot take a tuple: it is over the cap or the quota, or all that could go is in use.
    #[error("no room for {bytes} bytes in tier {}", tier.name())]
    MakeRoom {
        /// The tier.
        tier: Tier,
        /// Bytes needed.
        bytes: u64,
    },
    /// The folder of the disk tier cannot be used.
    #[error("folder '{}' cannot be opened", folder.display())]
    OpenFolder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tuple could not be written; nothing of it stays.
    #[error("tuple '{key}' cannot be written")]
    WriteTuple {
        /// Its key.
        key: SegmentKey,
        /// What the system said.
        source: io::Error,
    },
    /// The drive is full and nothing is left to evict.
    #[error("the drive is full; tuple '{key}' is not written")]
    FillDisk {
        /// Key of the tuple that found no place.
        key: SegmentKey,
        /// What the system said.
        source: io::Error,
    },
    /// A tuple could not be read just now; it is kept.
    #[error("tuple '{key}' cannot be read")]
    ReadTuple {
        /// Its key.
        key: SegmentKey,
        /// What the system said.
        source: io::Error,
    },
    /// A stored tuple is damaged; it was dropped.
    #[error("tuple '{key}' was damaged and is dropped")]
    CheckTuple {
        /// Its key.
        key: SegmentKey,
        /// What is wrong with it.
        source: Box<StoreError>,
    },
}
