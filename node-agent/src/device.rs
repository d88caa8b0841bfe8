//! Which device the agent computes on.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
#[cfg(feature = "cuda")]
use hypic_cuda::CudaDevice;
use hypic_kernels::cpu::CpuDevice;
#[cfg(not(feature = "cuda"))]
use hypic_kernels::op::OpError;

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The CPU, in fp32.
    #[default]
    Cpu,
    /// The GPU of this number, in bf16.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) => match number.parse() {
                Ok(number) => Ok(Self::Cuda(number)),
                Err(_) => Err(format!("\"{number}\" is no number of a GPU")),
            },
            _ => Err(format!("\"{name}\" is none of cpu, cuda, cuda:N")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// A device that was there.
pub(crate) enum Opened {
    Cpu(CpuDevice),
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaDevice>),
}

/// Opens a device: the CPU with so many threads (all cores without a number), or a GPU that holds the KV of so many
/// tokens of cached bodies.
///
/// # Errors
/// No such device: on this machine, or in this build.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a GPU has a pool of bodies"))]
pub(crate) fn open(name: DeviceName, threads: Option<usize>, body_tokens: usize) -> Result<Opened> {
    match name {
        DeviceName::Cpu => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(Opened::Cpu(CpuDevice::new(threads.unwrap_or(cores))?))
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(number) => {
            let device = hypic_cuda::Device::cuda(number)?;
            Ok(Opened::Cuda(Box::new(CudaDevice::new(device, body_tokens))))
        }
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda(number) => Err(OpError::NoDevice {
            reason: format!("this build has no cuda:{number}, it lacks the feature `cuda`"),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, device) in
            [("cpu", DeviceName::Cpu), ("cuda", DeviceName::Cuda(0)), ("cuda:3", DeviceName::Cuda(3))]
        {
            assert_eq!(name.parse(), Ok(device));
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_at_once() {
        assert!(matches!(open(DeviceName::Cpu, Some(1), 0), Ok(Opened::Cpu(_))));
        // No machine has so many GPUs.
        let Err(error) = open(DeviceName::Cuda(4096), None, 0) else { panic!("it has") };
        assert!(error.to_string().starts_with("no "), "{error}");
        assert!(error.to_string().contains("device"), "{error}");
    }
}
