//! Which nodes give the same bits.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a device's name at most.
pub const DEVICE_NAME_BYTES_MAX: usize = 96;

/// The device that a node computes on, as far as bits depend on it. A job runs on nodes of one
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceClass {
    /// Processor cores: all give the same bits.
    Processors,
    /// A device of NVIDIA's: those with the same name give the same bits.
    Cuda(DeviceName),
}

/// The kind of devices that a job runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// Processor cores, which all give the same bits.
    Processors,
    /// Devices of NVIDIA's, programmed with CUDA.
    Cuda,
}

impl DeviceClass {
    /// The kind of devices that the class belongs to.
    #[must_use]
    pub const fn kind(self) -> DeviceKind {
        match self {
            Self::Processors => DeviceKind::Processors,
            Self::Cuda(_) => DeviceKind::Cuda,
        }
    }
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processors => f.write_str("cpu"),
            Self::Cuda(name) => f.write_str(name.as_str()),
        }
    }
}

/// The model of a device with the versions that bits depend on: 1 to [`DEVICE_NAME_BYTES_MAX`]
/// printable letters of ASCII.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName {
    bytes: [u8; DEVICE_NAME_BYTES_MAX],
    len: u8,
}

/// Why a text is no name of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceNameRefusal {
    /// It is empty or too long.
    #[error("a device's name of {found} bytes, 1 to {DEVICE_NAME_BYTES_MAX} allowed")]
    Size {
        /// Length of the name in bytes.
        found: usize,
    },
    /// It has another character than those allowed.
    #[error("a device's name is made of printable letters of ASCII")]
    Character,
}

impl DeviceName {
    /// Makes a name of the text.
    ///
    /// # Errors
    /// If it is not one.
    pub fn new(text: &str) -> Result<Self, DeviceNameRefusal> {
        let found = text.len();
        if !(1..=DEVICE_NAME_BYTES_MAX).contains(&found) {
            return Err(DeviceNameRefusal::Size { found });
        }
        if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(DeviceNameRefusal::Character);
        }
        let mut bytes = [0; DEVICE_NAME_BYTES_MAX];
        bytes[..found].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: found as u8 })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("a name is ASCII")
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = DeviceNameRefusal;

    fn try_from(text: String) -> Result<Self, DeviceNameRefusal> {
        Self::new(&text)
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{DEVICE_NAME_BYTES_MAX, DeviceClass, DeviceName, DeviceNameRefusal};
    use crate::codec::{decode, encode};

    #[test]
    fn names_are_short_and_printable_wherever_they_come_from() {
        let text = "NVIDIA H200, sm_90, cublasLt 130100";
        let class = DeviceClass::Cuda(DeviceName::new(text).expect("a name"));
        assert_eq!(decode::<DeviceClass>(&encode(&class), 1000), Ok(class));
        assert_eq!(class.to_string(), text);
        assert_eq!(DeviceName::new(""), Err(DeviceNameRefusal::Size { found: 0 }));
        let most = "x".repeat(DEVICE_NAME_BYTES_MAX);
        assert_eq!(DeviceName::new(&most).expect("the longest").as_str(), most);
        assert!(DeviceName::new(&format!("{most}x")).is_err());
        assert_eq!(DeviceName::new("a\nb"), Err(DeviceNameRefusal::Character));
        let forged = encode(&(1u8, "a\u{7f}".to_owned()));
        assert!(decode::<DeviceClass>(&forged, 1000).is_err(), "what comes in is looked at");
    }
}
