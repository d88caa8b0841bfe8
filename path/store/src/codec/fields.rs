//! Little-endian fields of a manifest: written without limits, read without trust.

use crate::error::StoreError;

/// Reads fields from the front of a slice. Nothing is allocated before its bytes are known to be there.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], StoreError> {
        let (head, rest) =
            self.0.split_at_checked(len).ok_or(StoreError::ReadManifest { what: "too short" })?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, StoreError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, StoreError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StoreError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StoreError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn width(&mut self) -> Result<usize, StoreError> {
        Ok(self.u32()? as usize)
    }

    pub(crate) fn u32s(&mut self, count: usize) -> Result<Vec<u32>, StoreError> {
        let len = count.checked_mul(4).ok_or(StoreError::ReadManifest { what: "count overflows" })?;
        let words = self.take(len)?.chunks_exact(4);
        Ok(words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }
}
