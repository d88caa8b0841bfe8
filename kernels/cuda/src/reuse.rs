//! Memory and tables of a GPU that are used again: a step of decode asks for the same small ones in every layer, and the
//! driver takes longer to hand them out than the kernels to use them.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaSlice;

/// Larger memory goes back to the pool of the driver.
const SMALL: usize = 1 << 20;
/// Bytes that are kept in all.
const MOST_SPARE: usize = 64 << 20;
/// Larger tables take as long to look up as to upload.
const SMALL_TABLE: usize = 8 << 10;
/// Bytes of tables that are kept in all.
const MOST_TABLES: usize = 16 << 20;

/// Small memory that was given back, by its size. All uses are on one stream, so the next user comes after the last.
#[derive(Default)]
pub(crate) struct Spare {
    by_size: HashMap<usize, Vec<CudaSlice<u8>>>,
    bytes: usize,
}

impl Spare {
    /// Bytes to ask for where `size` are needed: small sizes are rounded up, so that there are few of them.
    pub(crate) fn rounded(size: usize) -> usize {
        if size <= SMALL { size.next_power_of_two().max(512) } else { size }
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
