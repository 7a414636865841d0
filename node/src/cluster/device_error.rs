//! Why a worker's device cannot continue, and how its process ends then.

use zbelastic_islands::ExchangeStartError;
use zbelastic_kernels::cuda::OpenError;
use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_machine::device::{code_of, code_of_fault};
use zbelastic_trainer::stage::StashStoreError;
use zbelastic_transport::frame::FrameTooLarge;
use zbelastic_wording::FailureCode;

use super::process_exit::ProcessExit;

/// Why the device cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum WorkerDeviceError {
    /// Memory does not suffice, or a thread cannot be started.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The device cannot be opened.
    #[error("{device}: {error}")]
    Open {
        /// The name of the device, such as `cuda:0`.
        device: String,
        /// Why it cannot be opened.
        error: OpenError,
    },
    /// The device failed.
    #[error("{device}: {fault}")]
    Fault {
        /// The name of the device, such as `cuda:0`.
        device: String,
        /// The fault that it reports.
        fault: DeviceFault,
    },
    /// Activations that leave memory cannot be stored, or read again.
    #[error(transparent)]
    Store(#[from] StashStoreError),
    /// A batch cannot be read: a store was altered while it was in use.
    #[error("the token store: {0}")]
    Unreadable(String),
    /// The folders of islands cannot be opened.
    #[error(transparent)]
    Islands(#[from] ExchangeStartError),
    /// A boundary tensor does not fit into a frame.
    #[error("a tensor cannot be sent: {0}")]
    Frame(#[from] FrameTooLarge),
}

impl WorkerDeviceError {
    /// How the process of a worker ends that has no device: the cluster continues without it.
    #[must_use]
    pub fn process_exit(&self) -> ProcessExit {
        let code = match self {
            Self::Open { error, .. } => code_of(error),
            Self::Fault { fault, .. } => code_of_fault(fault),
            Self::Allocate(_) | Self::Store(_) | Self::Islands(_) | Self::Frame(_) => {
                FailureCode::OutOfResource
            }
            // The process starts again, and fetches what is damaged from others.
            Self::Unreadable(_) => FailureCode::Internal,
        };
        let message = self.to_string();
        let is_ours = code == FailureCode::Internal;
        if is_ours { ProcessExit::Lost(message) } else { ProcessExit::OutOfResource(message) }
    }
}
