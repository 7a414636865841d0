//! The error of a request for memory that failed, on any device.

use crate::fault::{AllocationPurpose, DeviceFault, WHAT_NEEDS_LESS};

/// Memory could not be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocateError {
    /// Bytes that were requested.
    pub bytes: u64,
    /// What the memory is for, if it was requested from a device.
    pub purpose: Option<AllocationPurpose>,
    /// What the request is made of, with the bytes of each part, if the caller has named the parts.
    pub parts: Vec<(&'static str, u64)>,
    /// The device's free and total bytes when the request failed, if the device reports them.
    pub shortage: Option<MemoryShortage>,
    /// The fault that had ended the device before, if that is why.
    pub fault: Option<Box<DeviceFault>>,
}

/// A device's memory when there was too little of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShortage {
    /// Bytes that were free for the request.
    pub free_bytes: u64,
    /// Bytes of the device's whole memory.
    pub total_bytes: u64,
}

impl std::error::Error for AllocateError {}

impl std::fmt::Display for AllocateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(fault) = &self.fault {
            return fault.fmt(f);
        }
        write!(f, "the device has no {} bytes left", self.bytes)?;
        if let Some(purpose) = &self.purpose {
            write!(f, " for {purpose}")?;
        }
        let some = self.parts.iter().filter(|(_, bytes)| *bytes > 0);
        let parts: Vec<String> = some.map(|(part, bytes)| format!("{bytes} for {part}")).collect();
        if !parts.is_empty() {
            write!(f, " ({})", parts.join(", "))?;
        }
        match self.shortage {
            Some(MemoryShortage { free_bytes, total_bytes }) => {
                write!(f, ", {free_bytes} of {total_bytes} are free; {WHAT_NEEDS_LESS}")
            }
            None => Ok(()),
        }
    }
}

impl AllocateError {
    /// The system does not have this many bytes, and does not report how many are free.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self { bytes, purpose: None, parts: Vec::new(), shortage: None, fault: None }
    }

    /// The same request with its parts: what was to lie there, and the bytes of each.
    #[must_use]
    pub fn of_parts(self, parts: Vec<(&'static str, u64)>) -> Self {
        Self { parts, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_reported_by_parts_with_free_bytes_and_advice() {
        let shortage = Some(MemoryShortage { free_bytes: 3, total_bytes: 9 });
        let error = AllocateError {
            purpose: Some(AllocationPurpose::Claim),
            shortage,
            ..AllocateError::of_bytes(12)
        };
        let parts = vec![("weights", 7), ("nothing", 0), ("scratch", 5)];
        let text = error.clone().of_parts(parts).to_string();
        let begins = "the device has no 12 bytes left for what is kept and computed there (7 for \
                      weights, 5 for scratch), 3 of 9 are free; a smaller train.microbatch";
        assert!(text.starts_with(begins), "{text}");
        for word in [
            "train.precision",
            "memory.recompute",
            "memory.offload",
            "schedule.max_mem",
            "fewer stages on this device",
        ] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
        assert!(!error.to_string().contains('('), "{error}");
        let plain = AllocateError::of_bytes(12).to_string();
        assert_eq!(plain, "the device has no 12 bytes left", "a processor reports no more");
    }
}
