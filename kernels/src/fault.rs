//! Faults that end a device for its process. The owner of a backend checks for one before it passes
//! on anything that was computed: [`crate::Backend::fault`].

/// The purpose of requested memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocationPurpose {
    /// Buffers that were not counted before: of a tool, or of an owner that does not know its size.
    #[default]
    Buffers,
    /// All that a stage, or the copy of a layer, allocates at once.
    Claim,
    /// An operation that was not counted before.
    Scratch,
    /// The library of products, when a device is opened.
    Workspace,
}

impl std::fmt::Display for AllocationPurpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Buffers => "buffers",
            Self::Claim => "what is kept and computed there",
            Self::Scratch => "scratch of an operation",
            Self::Workspace => "the workspace of products",
        })
    }
}

/// The settings that a user can change when a device has too little memory.
pub(crate) const WHAT_NEEDS_LESS: &str = "a smaller train.microbatch, train.precision = \"bf16\", \
    memory.recompute, memory.offload, a lower schedule.max_mem or fewer stages on this device need \
    less";

/// The driver refused a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFault {
    /// Memory of the device could not be allocated.
    #[error(
        "the device has no {asked_bytes} bytes left for {purpose}, {free_bytes} of {total_bytes} are \
         free; {WHAT_NEEDS_LESS}"
    )]
    OutOfMemory {
        /// Bytes that were requested.
        asked_bytes: u64,
        /// The purpose of the memory.
        purpose: AllocationPurpose,
        /// Bytes that were free for the request.
        free_bytes: u64,
        /// Bytes of the device's whole memory.
        total_bytes: u64,
    },
    /// The device is in a state that only a new process gets out of.
    #[error(
        "{call}: {name} ({code}): the device failed in an earlier operation and every later call \
         fails alike; restart this process, and look at `dmesg` for lines with Xid if it comes back"
    )]
    Sticky {
        /// The driver call that returned the code.
        call: &'static str,
        /// The driver's code, a `CUresult`.
        code: u32,
        /// The name of the code.
        name: String,
    },
    /// The driver is there and cannot be used as things are.
    #[error("{call}: {name} ({code}): {hint}")]
    Unready {
        /// The driver call that returned the code.
        call: &'static str,
        /// The driver's code, a `CUresult`.
        code: u32,
        /// The name of the code.
        name: String,
        /// The cause of the refusal, and its remedy.
        hint: &'static str,
    },
    /// Any other refusal of the driver or of cublasLt.
    #[error("{call}: {name} ({code}); this should not happen with a healthy driver, report it")]
    Refused {
        /// The call that was refused.
        call: &'static str,
        /// The code: a `CUresult`, or a `cublasStatus_t` for products.
        code: u32,
        /// The name of the code.
        name: String,
    },
    /// No algorithm for a product of this shape.
    #[error(
        "cublasLt {library_version} has no algorithm for the product {product} within \
         {workspace_bytes} bytes of workspace"
    )]
    NoAlgorithm {
        /// The product: its kind, lengths, types and alignments as text.
        product: String,
        /// The version of cublasLt, as the library counts: 130100 for 13.1.
        library_version: u64,
        /// Bytes of workspace that an algorithm may use.
        workspace_bytes: u64,
    },
    /// The algorithm that was pinned for a product is not one of this library's.
    #[error(
        "the algorithm pinned for the product {product} was made with cublasLt {pinned_version}, \
         found {library_version}; install that version, or begin a new run"
    )]
    OtherLibrary {
        /// The product: its kind, lengths, types and alignments as text.
        product: String,
        /// The version of cublasLt that the algorithm was pinned with.
        pinned_version: u64,
        /// The version of cublasLt that was found.
        library_version: u64,
    },
    /// Memory of the host that a device copies by itself could not be allocated.
    #[error(
        "the host has no {asked_bytes} bytes that a device can copy by itself; `ulimit -l` may \
         limit them, and fewer offloaded passes or memory.offload_store = \"file\" need less"
    )]
    OutOfHostMemory {
        /// Bytes that were requested.
        asked_bytes: u64,
    },
}

/// CUresults after which a context is lost, by the driver's documentation.
const STICKY: [u32; 11] = [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719];

impl DeviceFault {
    /// The same fault of a request with this purpose, which the device did not know.
    #[must_use]
    pub fn with_purpose(self, purpose: AllocationPurpose) -> Self {
        match self {
            Self::OutOfMemory { asked_bytes, free_bytes, total_bytes, .. } => {
                Self::OutOfMemory { asked_bytes, purpose, free_bytes, total_bytes }
            }
            Self::Sticky { .. }
            | Self::Unready { .. }
            | Self::Refused { .. }
            | Self::NoAlgorithm { .. }
            | Self::OtherLibrary { .. }
            | Self::OutOfHostMemory { .. } => self,
        }
    }

    /// The fault behind a driver's code that is not success.
    #[must_use]
    pub fn of_code(call: &'static str, code: u32, name: String) -> Self {
        if STICKY.contains(&code) {
            return Self::Sticky { call, code, name };
        }
        match UNREADY.iter().find(|(known, _)| *known == code) {
            Some((_, hint)) => Self::Unready { call, code, name, hint },
            None => Self::Refused { call, code, name },
        }
    }
}

/// Codes of a driver that cannot be used as things are (CUDA driver API, `CUresult`), and the
/// remedies.
const UNREADY: [(u32, &str); 5] = [
    (46, "another process has the device to itself; `nvidia-smi -c DEFAULT` lets several share it"),
    (
        802,
        "the machine's links between devices are not up; start nvidia-fabricmanager, or restart the \
         machine",
    ),
    (
        803,
        "the driver was updated and the old one still runs; restart the machine, or load the new \
         kernel module",
    ),
    (
        804,
        "the compatibility libraries of a CUDA package are not for this device; take their folder out \
         of LD_LIBRARY_PATH",
    ),
    (
        999,
        "the driver lost the device, as after a suspend; reload nvidia_uvm or restart the machine",
    ),
];

#[cfg(test)]
mod tests {
    use super::DeviceFault;

    #[test]
    fn codes_that_lose_the_context_are_sticky() {
        let is_sticky = |code| {
            let fault = DeviceFault::of_code("cuLaunchKernel", code, String::new());
            matches!(fault, DeviceFault::Sticky { .. })
        };
        assert!([700, 719, 214].into_iter().all(is_sticky));
        assert!(![1, 2, 201, 209, 701].into_iter().any(is_sticky));
        let fault = DeviceFault::of_code("cuInit", 802, "NAME".to_owned());
        assert!(
            fault.to_string().starts_with("cuInit: NAME (802): the machine's links"),
            "{fault}"
        );
    }
}
