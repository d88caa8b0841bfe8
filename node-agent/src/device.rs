//! Which device the agent computes on.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
#[cfg(feature = "cuda")]
use hypic_cuda::CudaDevice;
use hypic_kernels::cpu::CpuDevice;
#[cfg(not(feature = "cuda"))]
use hypic_kernels::op::OpError;
#[cfg(feature = "cuda")]
use hypic_kernels::parallel::TensorParallel;

/// A device by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The CPU, in fp32.
    #[default]
    Cpu,
    /// The GPUs of these numbers, in bf16; several share each layer out.
    Cuda(Vec<usize>),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(vec![0])),
            Some(("cuda", numbers)) => {
                let number =
                    |text: &str| text.parse().map_err(|_| format!("\"{text}\" is no number of a GPU"));
                let numbers: Vec<usize> = numbers.split(',').map(number).collect::<Result<_, _>>()?;
                match numbers.iter().enumerate().find(|(place, number)| numbers[..*place].contains(number)) {
                    Some((_, twice)) => Err(format!("GPU {twice} is named twice")),
                    None => Ok(Self::Cuda(numbers)),
                }
            }
            _ => Err(format!("\"{name}\" is none of cpu, cuda, cuda:N, cuda:N,M")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                write!(f, "cuda:{}", numbers.join(","))
            }
        }
    }
}

/// A device that was there.
pub(crate) enum Opened {
    Cpu(CpuDevice),
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaDevice>),
    #[cfg(feature = "cuda")]
    Ranks(Box<TensorParallel<CudaDevice>>),
}

impl Opened {
    /// One of the CPU's.
    pub(crate) fn cpu(self) -> Option<CpuDevice> {
        match self {
            Self::Cpu(device) => Some(device),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) | Self::Ranks(_) => None,
        }
    }

    /// A GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(self) -> Option<CudaDevice> {
        match self {
            Self::Cpu(_) | Self::Ranks(_) => None,
            Self::Cuda(device) => Some(*device),
        }
    }
}

/// Opens a device: the CPU with so many threads (all cores without a number), or GPUs that hold the KV of so many tokens
/// of cached bodies.
///
/// # Errors
/// No such device: on this machine, or in this build; GPUs that cannot read each other's memory.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a GPU has a pool of bodies"))]
pub(crate) fn open(name: &DeviceName, threads: Option<usize>, body_tokens: usize) -> Result<Opened> {
    match name {
        DeviceName::Cpu => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(Opened::Cpu(CpuDevice::new(threads.unwrap_or(cores))?))
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(numbers) => {
            let open = |number: &usize| -> Result<CudaDevice> {
                Ok(CudaDevice::new(hypic_cuda::Device::cuda(*number)?, body_tokens))
            };
            match &numbers[..] {
                [number] => Ok(Opened::Cuda(Box::new(open(number)?))),
                numbers => {
                    let ranks = numbers.iter().map(open).collect::<Result<_>>()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, device) in [
            ("cpu", DeviceName::Cpu),
            ("cuda", DeviceName::Cuda(vec![0])),
            ("cuda:3", DeviceName::Cuda(vec![3])),
            ("cuda:0,2", DeviceName::Cuda(vec![0, 2])),
        ] {
            assert_eq!(device.to_string().parse(), Ok(device.clone()));
            assert_eq!(name.parse(), Ok(device));
        }
        for wrong in ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "cuda:0,", "cuda:1,1"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_at_once() {
        assert!(matches!(open(&DeviceName::Cpu, Some(1), 0), Ok(Opened::Cpu(_))));
        // No machine has so many GPUs.
        for numbers in [vec![4096], vec![4096, 4097]] {
            let Err(error) = open(&DeviceName::Cuda(numbers), None, 0) else { panic!("it has") };
            assert!(error.to_string().starts_with("no "), "{error}");
            assert!(error.to_string().contains("device"), "{error}");
        }
    }
}
