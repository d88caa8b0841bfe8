//! Host memory that a GPU copies from and to by itself: pinned once, handed out in pieces. For fibers it is plain memory.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::device::Backend;
#[cfg(feature = "cuda")]
use crate::sys::failed;
use crate::{Device, Result};

/// Pinned at a time: pinning takes as long as writing.
const CHUNK: usize = 1 << 30;
/// Pieces begin at multiples of it, and so much at either end of a chunk is nobody's: no piece touches another block of
/// memory.
pub(super) const GRAIN: usize = 512;

/// Pinned memory under a cap. Clones share it.
#[derive(Clone)]
pub struct Pinned(Arc<Room>);

struct Room {
    device: Device,
    cap: usize,
    chunks: Mutex<Vec<Chunk>>,
}

struct Chunk {
    memory: NonNull<u8>,
    len: usize,
    /// Offset and length of what nobody has; neighbours are joined.
    free: BTreeMap<usize, usize>,
}

// SAFETY: a chunk is plain memory of the process; pieces of it never overlap.
unsafe impl Send for Chunk {}

/// A piece of pinned memory; dropping it gives it back.
pub(crate) struct Piece {
    room: Arc<Room>,
    chunk: usize,
    offset: usize,
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: a piece is plain memory that nobody else has.
unsafe impl Send for Piece {}
// SAFETY: as above; behind a shared reference it is only read.
unsafe impl Sync for Piece {}

impl Pinned {
    /// Room for `cap` bytes, none of them pinned yet.
    pub fn new(device: &Device, cap: usize) -> Self {
        Self(Arc::new(Room { device: device.clone(), cap, chunks: Mutex::default() }))
    }

    /// Pins all of it, chunk by chunk; what is pinned is used at once. It takes five seconds for 6 GB.
    ///
    /// # Errors
    /// [`Error::CallDriver`](crate::Error::CallDriver) where the machine gives no more; what it gave stays.
    pub fn pin(&self) -> Result<()> {
        loop {
            let pinned: usize = self.0.chunks().iter().map(|chunk| chunk.len).sum();
            let len = (self.0.cap - pinned).min(CHUNK) / GRAIN * GRAIN;
            if len == 0 {
                return Ok(());
            }
            let memory = self.0.pin(len)?;
            let free = BTreeMap::from([(GRAIN, len.saturating_sub(2 * GRAIN))]);
            self.0.chunks().push(Chunk { memory, len, free });
        }
    }

    /// A piece of zeros or of whatever a former owner left; none where there is no room.
    pub(crate) fn take(&self, len: usize) -> Option<Piece> {
        let size = len.max(1).next_multiple_of(GRAIN);
        let mut chunks = self.0.chunks();
        let (number, chunk, offset) = chunks.iter_mut().enumerate().find_map(|(number, chunk)| {
            let offset = chunk.free.iter().find(|(_, free)| **free >= size).map(|(offset, _)| *offset);
            offset.map(|offset| (number, chunk, offset))
        })?;
        let free = chunk.free.remove(&offset)?;
        if free > size {
            chunk.free.insert(offset + size, free - size);
        }
        // SAFETY: the offset lies in the chunk.
        let memory = unsafe { chunk.memory.add(offset) };
        Some(Piece { room: Arc::clone(&self.0), chunk: number, offset, memory, len })
    }

    /// A copy of `parts` in pinned memory, one behind the other; none where they lie in it already, or where there is no
    /// room.
    pub fn place(&self, parts: &[Bytes]) -> Option<Vec<Bytes>> {
        if parts.iter().all(|bytes| self.holds(bytes)) {
            return None;
        }
        let mut piece = self.take(parts.iter().map(Bytes::len).sum())?;
        let mut rest = piece.bytes_mut();
        for bytes in parts {
            let (place, behind) = rest.split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            rest = behind;
        }
        let (all, mut end) = (Bytes::from_owner(piece), 0);
        let slices = parts.iter().map(|bytes| {
            end += bytes.len();
            all.slice(end - bytes.len()..end)
        });
        Some(slices.collect())
    }

    /// Whether `bytes` lie in it.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let at = bytes.as_ptr().addr();
        let within = |chunk: &Chunk| at.wrapping_sub(chunk.memory.as_ptr().addr()) < chunk.len;
        self.0.chunks().iter().any(within)
    }

    /// Bytes that are pinned, and how many of them nobody has.
    pub fn usage(&self) -> (usize, usize) {
        let chunks = self.0.chunks();
        let free = chunks.iter().flat_map(|chunk| chunk.free.values()).sum();
        (chunks.iter().map(|chunk| chunk.len).sum(), free)
    }
}

impl Room {
    // A panic under the lock cannot leave a list half changed: its steps do not panic.
    fn chunks(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` zeros.
    fn pin(&self, len: usize) -> Result<NonNull<u8>> {
        let memory: *mut u8 = match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                context.enter()?;
                // SAFETY: no flags, and the memory is zeroed below, before anybody sees it.
                unsafe { cudarc::driver::result::malloc_host(len, 0) }.map_err(failed("pin memory"))?.cast()
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Box::leak(vec![0_u8; len].into_boxed_slice()).as_mut_ptr(),
        };
        // The driver never answers with null; a piece of nothing would be as safe.
        let memory = NonNull::new(memory).unwrap_or(NonNull::dangling());
        // SAFETY: as many bytes were just allocated, and nobody else has them.
        unsafe { memory.as_ptr().write_bytes(0, len) };
        Ok(memory)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let device = self.device.clone();
        for chunk in self.chunks().drain(..) {
            match &*device.backend {
                #[cfg(feature = "cuda")]
                Backend::Cuda(context) => {
                    // SAFETY: `malloc_host` gave it, and no piece is left: each holds this room.
                    let free = || unsafe { cudarc::driver::result::free_host(chunk.memory.as_ptr().cast()) };
                    // A failure leaks it.
                    let _ = context.enter().map(|()| free());
                }
                #[cfg(feature = "fibers")]
                Backend::Fibers(_) => {
                    let all = std::ptr::slice_from_raw_parts_mut(chunk.memory.as_ptr(), chunk.len);
                    // SAFETY: it was leaked as such a box, and no piece is left.
                    drop(unsafe { Box::from_raw(all) });
                }
            }
        }
    }
}

impl Piece {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: it holds `len` initialised bytes that nobody else has.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: it holds `len` initialised bytes, which nobody writes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut chunks = self.room.chunks();
        let Some(chunk) = chunks.get_mut(self.chunk) else { return };
        let (mut offset, mut size) = (self.offset, self.len.max(1).next_multiple_of(GRAIN));
        if let Some(behind) = chunk.free.remove(&(offset + size)) {
            size += behind;
        }
        if let Some((&before, &len)) = chunk.free.range(..offset).next_back()
            && before + len == offset
        {
            (offset, size) = (before, len + size);
        }
        chunk.free.insert(offset, size);
    }
}

#[cfg(all(test, feature = "fibers"))]
#[allow(clippy::unwrap_used, reason = "a test's helper fails its test")]
mod tests {
    use super::*;
    use crate::Order;

    fn pinned(cap: usize) -> Pinned {
        let pinned = Pinned::new(&Device::fibers(Order::Forward), cap);
        assert!(pinned.take(1).is_none(), "nothing is pinned yet");
        pinned.pin().unwrap();
        pinned
    }

    #[test]
    fn pieces_never_overlap_and_come_back_as_one() {
        let pinned = pinned(100 * GRAIN + 7);
        assert_eq!(pinned.usage(), (100 * GRAIN, 98 * GRAIN));
        let mut random = 1_u32;
        let mut held: Vec<(u8, Bytes)> = Vec::new();
        for round in 0..2000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (fill, len) = (round as u8, (random >> 8) as usize % (9 * GRAIN));
            match pinned.place(&[Bytes::from(vec![fill; len])]) {
                Some(bytes) => held.push((fill, bytes[0].clone())),
                None => drop(held.swap_remove((random >> 3) as usize % held.len())),
            }
            if random.is_multiple_of(3) && !held.is_empty() {
                held.swap_remove((random >> 5) as usize % held.len());
            }
            assert!(held.iter().all(|(fill, bytes)| bytes.iter().all(|byte| byte == fill)));
        }
        drop(held);
        assert_eq!(pinned.usage(), (100 * GRAIN, 98 * GRAIN));
        assert_eq!(pinned.take(98 * GRAIN).map(|piece| piece.len), Some(98 * GRAIN));
    }

    #[test]
    fn what_lies_there_is_not_copied_and_outlives_its_room() {
        let pinned = pinned(6 * GRAIN);
        let parts = [Bytes::from_static(b"here"), Bytes::new(), Bytes::from_static(b"behind")];
        let placed = pinned.place(&parts).unwrap();
        assert_eq!(placed, parts);
        assert!(pinned.holds(&placed[0]) && !pinned.holds(b"there"));
        assert_eq!(placed[0].as_ptr_range().end, placed[2].as_ptr(), "one copy for both");
        assert!(pinned.place(&[placed[0].slice(1..), placed[2].clone()]).is_none(), "they are there");
        assert!(pinned.place(&[Bytes::from(vec![0; 4 * GRAIN])]).is_none(), "no room");
        drop(pinned);
        assert_eq!(placed, parts);
    }
}
