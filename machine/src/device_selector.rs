//! The devices that are computed on, as typed: `cpu`, or devices of NVIDIA's by number.

use std::fmt;

/// Devices that may be named at once: more than a machine has.
const DEVICES_MAX: usize = 64;
/// Digits of a device's number.
const DIGITS_MAX: usize = 3;

/// The device that a worker computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// The cores of this machine's CPU.
    Cpu,
    /// The NVIDIA device of this number, counted from 0 as CUDA_VISIBLE_DEVICES leaves them.
    Cuda(usize),
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Why a word names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no such kind of device.
    #[error("expected cpu or cuda:N, as in cuda:0")]
    Unknown,
    /// A kind that this program does not compute on.
    #[error("this program computes on processors and NVIDIA devices: expected cpu or cuda:N")]
    OtherMaker,
    /// The text behind the colon is no number of a device.
    #[error("\"{found}\" is no number of a device: expected cuda:N with N from 0, as in cuda:0")]
    Number {
        /// The text behind the colon.
        found: String,
    },
    /// The CPU is one device, and not beside others.
    #[error("cpu stands alone: expected cpu, or a list such as cuda:0,cuda:1")]
    Mixed,
    /// There are too many devices in the list.
    #[error("{found} devices, at most {DEVICES_MAX}")]
    Count {
        /// Number of devices in the list.
        found: usize,
    },
}

impl DeviceSelector {
    /// The device that a word names.
    ///
    /// # Errors
    /// If it names none.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        if text == "cpu" {
            return Ok(Self::Cpu);
        }
        if let Some(number) = text.strip_prefix("cuda:") {
            let is_number = (1..=DIGITS_MAX).contains(&number.len())
                && number.bytes().all(|byte| byte.is_ascii_digit());
            let index = number.parse().ok().filter(|_| is_number);
            let found: String = number.chars().take(20).collect();
            return index.map(Self::Cuda).ok_or(DeviceError::Number { found });
        }
        Err(match text {
            "cuda" | "gpu" => DeviceError::Number { found: String::new() },
            _ if ["rocm", "metal", "mps", "xpu", "tpu"]
                .iter()
                .any(|kind| text.starts_with(kind)) =>
            {
                DeviceError::OtherMaker
            }
            _ => DeviceError::Unknown,
        })
    }
}

/// The devices that the workers of a run compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// The cores of this machine's CPU.
    Cpu,
    /// These devices, dealt out to stages in turn.
    Cuda(Vec<usize>),
}

impl DeviceList {
    /// The devices that a list names.
    ///
    /// # Errors
    /// If a word names none, or some do not go together.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        let devices = text.split(',').map(DeviceSelector::parse).collect::<Result<Vec<_>, _>>()?;
        if devices == [DeviceSelector::Cpu] {
            return Ok(Self::Cpu);
        }
        let index = |device: &DeviceSelector| match device {
            DeviceSelector::Cpu => Err(DeviceError::Mixed),
            DeviceSelector::Cuda(index) => Ok(*index),
        };
        match devices.len() {
            found if found > DEVICES_MAX => Err(DeviceError::Count { found }),
            _ => Ok(Self::Cuda(devices.iter().map(index).collect::<Result<_, _>>()?)),
        }
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => DeviceSelector::Cpu.fmt(f),
            Self::Cuda(indices) => {
                let words: Vec<_> = indices.iter().map(|index| format!("cuda:{index}")).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceError, DeviceList, DeviceSelector};

    #[test]
    fn devices_are_named_by_kind_and_number() {
        assert_eq!(DeviceSelector::parse("cpu"), Ok(DeviceSelector::Cpu));
        assert_eq!(DeviceSelector::parse("cuda:0"), Ok(DeviceSelector::Cuda(0)));
        assert_eq!(DeviceSelector::parse("cuda:12"), Ok(DeviceSelector::Cuda(12)));
        for word in ["cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:0x1", "cuda:1000", "cuda"] {
            let refused = DeviceSelector::parse(word).expect_err(word);
            assert!(matches!(refused, DeviceError::Number { .. }), "{word}: {refused}");
            assert!(refused.to_string().contains("as in cuda:0"), "{refused}");
        }
        assert_eq!(DeviceSelector::parse("rocm:0"), Err(DeviceError::OtherMaker));
        assert_eq!(DeviceSelector::parse("CPU"), Err(DeviceError::Unknown));
        assert_eq!(DeviceSelector::parse(""), Err(DeviceError::Unknown));
    }

    #[test]
    fn several_devices_are_of_one_kind() {
        let check = |text: &str| {
            let list = DeviceList::parse(text)?;
            assert_eq!(list.to_string(), text);
            Ok(list)
        };
        assert_eq!(check("cpu"), Ok(DeviceList::Cpu));
        assert_eq!(check("cuda:1,cuda:0,cuda:1"), Ok(DeviceList::Cuda(vec![1, 0, 1])));
        assert_eq!(check("cpu,cuda:0"), Err(DeviceError::Mixed));
        assert_eq!(check("cpu,cpu"), Err(DeviceError::Mixed));
        assert_eq!(check("cuda:0,"), Err(DeviceError::Unknown));
        let many = vec!["cuda:0"; 65].join(",");
        assert_eq!(check(&many), Err(DeviceError::Count { found: 65 }));
    }
}
