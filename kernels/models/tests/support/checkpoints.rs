//! Checkpoints for tests.

use std::path::Path;

use hypic_domain::id::ModelId;
use hypic_kernels::cpu::CpuDevice;
use hypic_models::random::{self, RandomSpec};
use hypic_models::{LoadError, Loaded, load};
use tempfile::TempDir;

/// A random checkpoint in a folder of its own.
pub(crate) fn written(spec: &RandomSpec) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    random::write(dir.path(), spec).unwrap();
    dir
}

/// Loads a checkpoint onto one thread.
pub(crate) fn read(dir: &Path) -> Result<Loaded<CpuDevice>, LoadError> {
    load(dir, &CpuDevice::new(1).unwrap(), ModelId::from("m"))
}
