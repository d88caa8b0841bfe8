//! Devices that read each other's memory.

use cudarc::driver::result;
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, cuDeviceCanAccessPeer,
    cuMemPoolSetAccess,
};

use super::cuda::pool_of;
use super::{Context, failed};
use crate::{Error, Result};

impl Context {
    /// Lets kernels on the device of `reader` read this device's memory.
    pub(crate) fn open_to(&self, reader: &Self) -> Result<()> {
        let (to, from) = (self.stream.context().ordinal(), reader.stream.context().ordinal());
        if to == from {
            return Ok(());
        }
        let opened = || {
            let (device, peer) = (result::device::get(to as i32)?, result::device::get(from as i32)?);
            let mut reaches = 0;
            // SAFETY: both devices exist, and the driver writes one number.
            unsafe { cuDeviceCanAccessPeer(&raw mut reaches, peer, device) }.result()?;
            if reaches == 0 {
                return Ok(false);
            }
            let location =
                CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: from as i32 };
            let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let access = CUmemAccessDesc { location, flags };
            let pool = pool_of(to)?;
            // SAFETY: the pool is a device's own; the driver reads one description.
            unsafe { cuMemPoolSetAccess(pool, &raw const access, 1) }.result()?;
            Ok(true)
        };
        match opened().map_err(failed("let a peer read memory"))? {
            true => Ok(()),
            false => Err(Error::ReachPeer { from, to }),
        }
    }
}
