//! Which device the agent computes on.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
#[cfg(feature = "cuda")]
use hypic_cuda::CudaDevice;
use hypic_kernels::cpu::CpuDevice;
#[cfg(not(feature = "cuda"))]
use hypic_kernels::op::OpError;

use crate::args::Memory;

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

/// Opens the device that the flags name.
///
/// # Errors
/// No such device: on this machine, or in this build.
pub(crate) fn open(memory: &Memory) -> Result<Opened> {
    match memory.device {
        DeviceName::Cpu => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(Opened::Cpu(CpuDevice::new(memory.threads.unwrap_or(cores))?))
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(number) => {
            let device = hypic_cuda::Device::cuda(number)?;
            Ok(Opened::Cuda(Box::new(CudaDevice::new(device, memory.body_tokens))))
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
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn parsed(device: &[&str]) -> Result<Memory, clap::Error> {
        let base = ["hypic-node-agent", "--id", "a", "--topology", "t", "--model", "m", "--plain"];
        Args::try_parse_from(base.iter().chain(device)).map(Args::into_memory)
    }

    #[test]
    fn devices_have_names() {
        for (flags, name) in [
            (&[][..], DeviceName::Cpu),
            (&["--device", "cpu"], DeviceName::Cpu),
            (&["--device", "cuda"], DeviceName::Cuda(0)),
            (&["--device", "cuda:3"], DeviceName::Cuda(3)),
        ] {
            let memory = parsed(flags).unwrap();
            assert_eq!(memory.device, name);
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0"] {
            assert!(parsed(&["--device", wrong]).unwrap_err().to_string().contains("--device"), "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_at_once() {
        assert!(matches!(open(&parsed(&["--threads", "1"]).unwrap()), Ok(Opened::Cpu(_))));
        // No machine has so many GPUs.
        let Err(error) = open(&parsed(&["--device", "cuda:4096"]).unwrap()) else { panic!("it has") };
        assert!(error.to_string().starts_with("no "), "{error}");
        assert!(error.to_string().contains("device"), "{error}");
    }
}
