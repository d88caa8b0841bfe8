//! Which device the agent computes on.

use std::fmt;
use std::str::FromStr;

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
}
