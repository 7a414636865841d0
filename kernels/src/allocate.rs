//! How a request for memory fails, on any device.

/// Memory could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has no {bytes} bytes left{}", match free_bytes {
    Some(free) => format!(
        ", {free} are free; a smaller train.microbatch, memory.recompute or more stages need less"
    ),
    None => String::new(),
})]
pub struct AllocateError {
    /// What was asked for.
    pub bytes: u64,
    /// What was free then, if the device tells.
    pub free_bytes: Option<u64>,
}
