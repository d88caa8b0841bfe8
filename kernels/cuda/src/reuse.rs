//! Memory and tables of a GPU that are used again: a step of decode asks for the same small ones in every layer, and the
//! driver takes longer to hand them out than the kernels to use them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use cudarc::driver::CudaSlice;

use crate::Result;
use crate::arena::{Memory, SMALL, rounded_small};
use crate::sys::{Context, failed};

/// Bytes that are kept in all.
const MOST_SPARE: usize = 64 << 20;
/// Larger tables take as long to look up as to upload.
const SMALL_TABLE: usize = 8 << 10;
/// Bytes of tables that are kept in all.
const MOST_TABLES: usize = 16 << 20;

/// Memory of up to [`SMALL`] bytes that was given back, by its size; larger goes back to the pool of the driver. All uses are on one stream, so the next user comes after the last.
#[derive(Default)]
pub(crate) struct Spare {
    by_size: HashMap<usize, Vec<CudaSlice<u8>>>,
    bytes: usize,
}

impl Spare {
    /// Bytes to ask for where `size` are needed.
    pub(crate) fn rounded(size: usize) -> usize {
        if size <= SMALL { rounded_small(size) } else { size }
    }

    /// Memory of a rounded size.
    pub(crate) fn take(&mut self, size: usize) -> Option<CudaSlice<u8>> {
        let slice = self.by_size.get_mut(&size)?.pop()?;
        self.bytes -= size;
        Some(slice)
    }

    /// Keeps memory for the next one; what is not small, or too much, comes back.
    pub(crate) fn put(&mut self, slice: CudaSlice<u8>) -> Option<CudaSlice<u8>> {
        let size = slice.len();
        if size > SMALL || self.bytes + size > MOST_SPARE {
            return Some(slice);
        }
        self.bytes += size;
        self.by_size.entry(size).or_default().push(slice);
        None
    }
}

/// Tables that nobody writes, by their bytes.
#[derive(Default)]
pub(crate) struct Tables {
    by_bytes: HashMap<Box<[u8]>, Arc<CudaSlice<u8>>>,
    bytes: usize,
}

impl Tables {
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<Arc<CudaSlice<u8>>> {
        if bytes.len() > SMALL_TABLE { None } else { self.by_bytes.get(bytes).map(Arc::clone) }
    }

    /// Keeps a table. When there is no room, all others go: those of a step that goes on come back with its next.
    pub(crate) fn put(&mut self, bytes: &[u8], table: &Arc<CudaSlice<u8>>) {
        if bytes.len() > SMALL_TABLE {
            return;
        }
        if self.bytes + table.len() > MOST_TABLES {
            self.by_bytes.clear();
            self.bytes = 0;
        }
        self.bytes += table.len();
        self.by_bytes.insert(bytes.into(), Arc::clone(table));
    }
}

impl Context {
    /// At least `size` bytes of whatever is there.
    pub(crate) fn allocate(&self, size: usize) -> Result<Memory<CudaSlice<u8>>> {
        if self.now.is_step() {
            return self.arena.take(&self.now, size, |size| self.fresh(size));
        }
        let size = Spare::rounded(size);
        // A panic while one of these was held leaves it whole, here and below.
        let spare = match self.now.is_recording() {
            true => None,
            false => self.spare.lock().unwrap_or_else(PoisonError::into_inner).take(size),
        };
        spare.map_or_else(|| self.fresh(size), Ok).map(Memory::shared)
    }

    /// Takes memory back, for whoever asks next on this stream.
    pub(crate) fn give_back(&self, memory: Memory<CudaSlice<u8>>) {
        let Some(slice) = self.arena.put(memory) else { return };
        if !self.now.is_recording() {
            let rest = self.spare.lock().unwrap_or_else(PoisonError::into_inner).put(slice);
            drop(rest);
        }
    }

    /// `bytes` on the device, not to be written: the same bytes are uploaded once.
    pub(crate) fn table(&self, bytes: &[u8]) -> Result<Arc<CudaSlice<u8>>> {
        self.now.check_upload()?;
        let is_kept = !bytes.is_empty() && !self.now.is_recording();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = is_kept.then(|| tables.find(bytes)).flatten() {
            return Ok(table);
        }
        // Not from the arena: it stays when the step is over.
        let mut slice = self.fresh(Spare::rounded(bytes.len().max(1)))?;
        if !bytes.is_empty() {
            self.stream.memcpy_htod(bytes, &mut slice).map_err(failed("copy to the device"))?;
        }
        let table = Arc::new(slice);
        if is_kept {
            tables.put(bytes, &table);
        }
        Ok(table)
    }
}
