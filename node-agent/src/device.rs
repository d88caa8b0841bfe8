//! The devices that the agent computes on, opened.

use anyhow::Result;
#[cfg(feature = "cuda")]
use hypic_cuda::{CudaDevice, Pinned};
use hypic_kernels::cpu::CpuDevice;
#[cfg(not(feature = "cuda"))]
use hypic_kernels::op::OpError;
#[cfg(feature = "cuda")]
use hypic_kernels::parallel::TensorParallel;

use crate::args::Memory;
use crate::device_name::DeviceName;

/// A device that was there.
pub(crate) enum Opened {
    Cpu(CpuDevice),
    #[cfg(feature = "cuda")]
    Cuda {
        device: Box<CudaDevice>,
        /// Where the tuples of the Host tier lie.
        pinned: Pinned,
    },
    /// Several GPUs as one; its Host tier lies in plain memory.
    #[cfg(feature = "cuda")]
    Ranks(Box<TensorParallel<CudaDevice>>),
}

impl Opened {
    /// One of the CPU's.
    pub(crate) fn cpu(self) -> Option<CpuDevice> {
        match self {
            Self::Cpu(device) => Some(device),
            #[cfg(feature = "cuda")]
            Self::Cuda { .. } | Self::Ranks(_) => None,
        }
    }

    /// A GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(self) -> Option<CudaDevice> {
        match self {
            Self::Cpu(_) | Self::Ranks(_) => None,
            Self::Cuda { device, .. } => Some(*device),
        }
    }
}

/// Opens the agent's device: the CPU with so many threads (all cores without a number), or GPUs that hold the KV of so
/// many tokens of cached bodies; for one GPU the Host tier's memory is pinned meanwhile.
///
/// # Errors
/// No such device: on this machine, or in this build; GPUs that cannot read each other's memory.
pub(crate) fn open(memory: &Memory) -> Result<Opened> {
    open_named(&memory.device, memory.threads, memory.body_tokens, memory.host_bytes)
}

/// Opens a further device, on which no prompt is composed.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_further(name: &DeviceName, memory: &Memory) -> Result<Opened> {
    open_named(name, memory.threads, 0, 0)
}

#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a GPU has a pool of bodies"))]
fn open_named(
    name: &DeviceName,
    threads: Option<usize>,
    body_tokens: usize,
    host_bytes: u64,
) -> Result<Opened> {
    match name {
        DeviceName::Cpu => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(Opened::Cpu(CpuDevice::new(threads.unwrap_or(cores))?))
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(numbers) => {
            let open = |number: &usize| hypic_cuda::Device::cuda(*number);
            match &numbers[..] {
                [number] => {
                    let device = open(number)?;
                    let pinned = Pinned::new(&device, usize::try_from(host_bytes).unwrap_or(usize::MAX));
                    if host_bytes > 0 {
                        pin(pinned.clone());
                    }
                    let device = CudaDevice::new(device, body_tokens).with_pinned(pinned.clone());
                    Ok(Opened::Cuda { device: Box::new(device), pinned })
                }
                numbers => {
                    let rank = |number| Ok(CudaDevice::new(open(number)?, body_tokens));
                    let ranks = numbers.iter().map(rank).collect::<Result<_>>()?;
                    Ok(Opened::Ranks(Box::new(TensorParallel::new(ranks)?)))
                }
            }
        }
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda(_) => Err(OpError::NoDevice {
            reason: format!("this build has no {name}, it lacks the feature `cuda`"),
        }
        .into()),
    }
}

/// Pins memory while the model is loaded. What the machine does not give is missed by nobody but copies, which are slower.
#[cfg(feature = "cuda")]
fn pin(pinned: Pinned) {
    let work = move || match pinned.pin() {
        Ok(()) => tracing::info!(bytes = pinned.usage().0, "the Host tier's memory is pinned"),
        Err(error) => {
            let (bytes, error) = (pinned.usage().0, anyhow::Error::from(error));
            tracing::warn!(bytes, "the Host tier is pinned in part: {error:#}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("pin".to_owned()).spawn(work) {
        tracing::warn!(%error, "the Host tier stays in plain memory");
    }
}

/// Puts the bytes of tuples into pinned memory. Where it is full they stay in plain memory, and that is said once.
#[cfg(feature = "cuda")]
pub(crate) fn placing(pinned: Pinned) -> hypic_store::Place {
    let said = std::sync::Once::new();
    Box::new(move |parts| {
        let placed = pinned.place(parts);
        if placed.is_none() && !parts.iter().all(|bytes| pinned.holds(bytes)) {
            let (all, free) = pinned.usage();
            said.call_once(|| tracing::warn!(all, free, "a tuple of the Host tier finds no pinned memory"));
        }
        placed
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn a_device_that_is_not_there_is_named_at_once() {
        let memory = |device: &str| {
            let base = ["hypic-node-agent", "--id", "a", "--topology", "t", "--model", "m", "--plain"];
            Args::parse_from(base.iter().chain(&["--threads=1", "--device", device])).memory
        };
        assert!(matches!(open(&memory("cpu")), Ok(Opened::Cpu(_))));
        // No machine has so many GPUs.
        for name in ["cuda:4096", "cuda:4096,4097"] {
            let Err(error) = open(&memory(name)) else { panic!("it has") };
            assert!(error.to_string().starts_with("no "), "{error}");
            assert!(error.to_string().contains("device"), "{error}");
        }
    }
}
