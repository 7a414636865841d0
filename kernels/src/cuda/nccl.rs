//! Boundary tensors between devices of two processes, by NCCL: one communicator for each pair and
//! direction.
//!
//! The receiver makes the id and has rank 0. It posts a receive for each tensor that was announced to
//! it, so that both ends enqueue the same exchanges in the same order. A peer may die at any moment,
//! and then an exchange is never done: no exchange is waited for in the driver or in NCCL.
//! Communicators are not blocking (`ncclConfig_t`), and they and their streams are queried. A tensor
//! becomes visible to the compute stream only behind an exchange that was complete, so that nothing
//! is computed of one that was aborted.
//!
//! That a send is complete says nothing of the other end: NCCL may hold a small one back. And an
//! abort is not noticed there, where memory is shared. Both have to be said in messages.
//!
//! NCCL User Guide, *Creating a communicator with options* and *Fault tolerance*.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys as driver;
use cudarc::nccl::sys;

use super::backend::CudaBackend;
use super::device::{Device, DeviceAddress};
use super::devices::check;
use super::error::{DeviceFault, Library, LibraryError};
use super::library::require;
use super::staging::{self, IncomingTensor, LandingMemory, StagingBufferPool};
use super::streams::PrimaryContext;
use crate::sizes::StagingReservation;
use crate::tensor_handle::TensorHandle;

/// The oldest version with all that is used here, and with aborts that end: 2.19.3, as NCCL counts.
pub const NCCL_OLDEST: i32 = 21_903;
/// The version whose configuration is passed: later ones read its fields as they were then.
const CONFIG_VERSION: u32 = 22_203;
/// What a configuration begins with (`NCCL_CONFIG_INITIALIZER`).
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// A field of it that is left to NCCL (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;
/// Bytes of an id.
pub const COMMUNICATOR_ID_BYTES: usize = 128;

/// The name of a communicator, which its ranks begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorId(pub [u8; COMMUNICATOR_ID_BYTES]);

/// Which end of a link this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// It receives, and has made the id: rank 0.
    Receiver,
    /// It sends: rank 1.
    Sender,
}

/// Why a link cannot be used. Tensors go by way of the host then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// NCCL is not there.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// NCCL is too old.
    #[error("NCCL {found} is older than {NCCL_OLDEST}; install a newer one")]
    TooOld {
        /// The version that was found, as NCCL counts: 21903 for 2.19.3.
        found: i32,
    },
    /// NCCL refused a call, or an exchange under way failed.
    #[error("NCCL: {call}: {reason}")]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// NCCL's own words for its result.
        reason: String,
    },
    /// The driver refused a call.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
}

impl CommunicatorId {
    /// A new id. Its maker has to be the receiver of the link.
    ///
    /// # Errors
    /// If NCCL is not there or too old.
    pub fn new() -> Result<Self, LinkError> {
        require_nccl()?;
        let mut id = sys::ncclUniqueId { internal: [0; COMMUNICATOR_ID_BYTES] };
        // SAFETY: NCCL writes an id.
        nccl("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&mut id) })?;
        Ok(Self(id.internal.map(|byte| byte.to_ne_bytes()[0])))
    }
}

/// NCCL, in a version that has what is used here.
fn require_nccl() -> Result<(), LinkError> {
    require(Library::Nccl)?;
    let mut found = 0;
    // SAFETY: NCCL is there and writes one integer.
    nccl("ncclGetVersion", unsafe { sys::ncclGetVersion(&mut found) })?;
    if found < NCCL_OLDEST {
        return Err(LinkError::TooOld { found });
    }
    Ok(())
}

/// The result of a call of NCCL. One that goes on beside the caller is no error.
fn nccl(call: &'static str, result: sys::ncclResult_t) -> Result<(), LinkError> {
    use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
    if result == ncclSuccess || result == ncclInProgress {
        return Ok(());
    }
    Err(refused(call, result))
}

fn refused(call: &'static str, result: sys::ncclResult_t) -> LinkError {
    // SAFETY: NCCL returns a string of its own, or null.
    let reason = unsafe {
        let text = sys::ncclGetErrorString(result);
        if text.is_null() {
            format!("{result:?}")
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    LinkError::Refused { call, reason }
}

/// A communicator of two ranks with a stream of its own.
struct Communicator {
    end: LinkEnd,
    /// Where NCCL writes the handle, which it may do until the communicator is initialized.
    comm: Box<sys::ncclComm_t>,
    stream: driver::CUstream,
    context: Arc<PrimaryContext>,
}

// SAFETY: the handles may be used from any thread, one at a time, once the context is current
// there, which every call makes sure of.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to initialize a communicator; [`Self::is_ready`] says when it is.
    fn begin(
        context: Arc<PrimaryContext>,
        end: LinkEnd,
        id: &CommunicatorId,
    ) -> Result<Self, LinkError> {
        require_nccl()?;
        context.make_current()?;
        let mut stream = std::ptr::null_mut();
        let flags = driver::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes a handle, which is destroyed with this.
        check("cuStreamCreate", unsafe { driver::cuStreamCreate(&mut stream, flags) })?;
        let comm = Box::new(std::ptr::null_mut());
        let mut begun = Self { end, comm, stream, context };
        let mut config = sys::ncclConfig_t {
            size: size_of::<sys::ncclConfig_t>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: std::ptr::null(),
            splitShare: UNDEFINED,
        };
        let id = sys::ncclUniqueId { internal: id.0.map(|byte| byte as c_char) };
        let rank = begun.rank();
        // SAFETY: NCCL writes a handle, which is aborted with this, and reads the configuration.
        let result =
            unsafe { sys::ncclCommInitRankConfig(&mut *begun.comm, 2, id, rank, &mut config) };
        nccl("ncclCommInitRankConfig", result)?;
        Ok(begun)
    }

    const fn rank(&self) -> c_int {
        match self.end {
            LinkEnd::Receiver => 0,
            LinkEnd::Sender => 1,
        }
    }

    /// Whether the last call is done that went on beside the caller.
    fn is_ready(&self) -> Result<bool, LinkError> {
        self.context.make_current()?;
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: a communicator that is not aborted before it is dropped; NCCL writes a result.
        let result = unsafe { sys::ncclCommGetAsyncError(*self.comm, &mut state) };
        nccl("ncclCommGetAsyncError", result)?;
        nccl("a communicator", state)?;
        Ok(state == sys::ncclResult_t::ncclSuccess)
    }

    /// Enqueues the exchange of bytes of a device or of pinned memory, which no stream uses until it
    /// is done or the communicator aborted.
    fn enqueue(&self, at: DeviceAddress, bytes: u64) -> Result<(), LinkError> {
        if !self.is_ready()? {
            return Err(LinkError::Refused {
                call: "a communicator",
                reason: "it is not initialized yet".to_owned(),
            });
        }
        let (count, of) = (bytes as usize, sys::ncclDataType_t::ncclUint8);
        let (at, other) = (at.0 as *mut c_void, 1 - self.rank());
        let (comm, stream) = (*self.comm, self.stream.cast());
        // SAFETY: memory of the caller, which leaves it alone as it promises.
        unsafe {
            match self.end {
                LinkEnd::Sender => {
                    nccl("ncclSend", sys::ncclSend(at, count, of, other, comm, stream))
                }
                LinkEnd::Receiver => {
                    nccl("ncclRecv", sys::ncclRecv(at, count, of, other, comm, stream))
                }
            }
        }
    }

    /// Whether all exchanges that were enqueued are done.
    fn is_done(&self) -> Result<bool, LinkError> {
        if !self.is_ready()? {
            return Ok(false);
        }
        // SAFETY: a stream of the current context.
        let queried = unsafe { driver::cuStreamQuery(self.stream) };
        if queried == driver::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuStreamQuery", queried)?;
        // An exchange that failed ends as well.
        self.is_ready()
    }
}

impl Drop for Communicator {
    /// Aborts exchanges under way. Their memory is free when this returns.
    fn drop(&mut self) {
        if self.context.make_current().is_err() {
            return;
        }
        // SAFETY: handles that were made by `begin`, and are used no more; nothing is enqueued in the
        // stream when it is destroyed.
        unsafe {
            if !self.comm.is_null() {
                let _aborted = sys::ncclCommAbort(*self.comm);
            }
            let _ended = driver::cuStreamSynchronize(self.stream);
            let _destroyed = driver::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// Begins links of a device with devices of other processes.
pub trait DeviceLinks: Send {
    /// Begins a link. Both ends have to, in any order; neither waits.
    ///
    /// # Errors
    /// If NCCL or the driver refuses.
    fn begin(&self, end: LinkEnd, id: &CommunicatorId) -> Result<Box<dyn DeviceLink>, LinkError>;
}

/// A link from one device to another, in one direction, with at most one exchange under way. It is
/// of no further use after an error; dropped, it ends the exchange.
pub trait DeviceLink: Send {
    /// Whether both ends have begun it, so that tensors may be exchanged.
    ///
    /// # Errors
    /// If it can never be used.
    fn is_ready(&self) -> Result<bool, LinkError>;

    /// Waits until a tensor is computed, and begins to send it. False if no device of this kind holds
    /// it.
    ///
    /// # Errors
    /// If the tensor, or the link, cannot be used.
    ///
    /// # Panics
    /// If this is the receiver, or an exchange is under way.
    fn begin_send(&mut self, tensor: &TensorHandle) -> Result<bool, LinkError>;

    /// Begins to receive the next tensor that is sent, of `len` numbers.
    ///
    /// # Errors
    /// If there is no memory for it, or the link cannot be used.
    ///
    /// # Panics
    /// If this is the sender, or an exchange is under way.
    fn begin_receive(&mut self, len: usize) -> Result<(), LinkError>;

    /// What the exchange under way has come to.
    ///
    /// # Errors
    /// If it failed.
    fn poll(&mut self) -> Result<ExchangeState, LinkError>;
}

/// What an exchange has come to.
#[derive(Debug)]
pub enum ExchangeState {
    /// There is none, or it is not done.
    Pending,
    /// The tensor was sent, as far as this end knows.
    Sent,
    /// The tensor has come.
    Received(TensorHandle),
}

/// The links of a device.
struct CudaLinks<D: Device>(CudaBackend<D>);

/// The exchange under way on a link.
enum Exchange<D: Device> {
    Send(#[expect(dead_code, reason = "keeps the tensor while NCCL reads it")] TensorHandle),
    Receive(IncomingTensor<D>),
}

/// A link with the staging buffers that it receives into, which no plan has claimed: so many as are
/// used in turn. What comes while none is free is received into pinned memory of the host.
struct CudaLink<D: Device> {
    /// Dropped first: what is below is memory that it may still use.
    communicator: Communicator,
    exchange: Option<Exchange<D>>,
    pool: StagingBufferPool<D>,
    landing: Option<LandingMemory<D>>,
    backend: CudaBackend<D>,
}

impl<D: Device> CudaBackend<D> {
    /// What begins links of this device; `None` for one that NCCL does not know.
    #[must_use]
    pub fn links(&self) -> Option<Box<dyn DeviceLinks>> {
        self.device().primary_context().ok()??;
        Some(Box::new(CudaLinks(self.sibling())))
    }
}

impl<D: Device> DeviceLinks for CudaLinks<D> {
    fn begin(&self, end: LinkEnd, id: &CommunicatorId) -> Result<Box<dyn DeviceLink>, LinkError> {
        let context = self.0.device().primary_context()?;
        let context = context.expect("links are made of a device that has one");
        let communicator = Communicator::begin(context, end, id)?;
        let pool = StagingBufferPool::with_limit(StagingReservation::ROTATED);
        let backend = self.0.sibling();
        Ok(Box::new(CudaLink { communicator, exchange: None, pool, landing: None, backend }))
    }
}

impl<D: Device> DeviceLink for CudaLink<D> {
    fn is_ready(&self) -> Result<bool, LinkError> {
        self.communicator.is_ready()
    }

    fn begin_send(&mut self, tensor: &TensorHandle) -> Result<bool, LinkError> {
        assert_eq!(self.communicator.end, LinkEnd::Sender);
        assert!(self.exchange.is_none(), "one after the other");
        let Some((at, bytes)) = staging::outgoing_bytes::<D>(tensor)? else { return Ok(false) };
        self.communicator.enqueue(at, bytes)?;
        self.exchange = Some(Exchange::Send(tensor.clone()));
        Ok(true)
    }

    fn begin_receive(&mut self, len: usize) -> Result<(), LinkError> {
        assert_eq!(self.communicator.end, LinkEnd::Receiver);
        assert!(self.exchange.is_none(), "one after the other");
        let Self { backend, pool, landing, .. } = self;
        let tensor = IncomingTensor::new(backend, pool, landing, len)?;
        let (at, bytes) = tensor.bytes(backend);
        // From now on NCCL may write it.
        self.exchange = Some(Exchange::Receive(tensor));
        self.communicator.enqueue(at, bytes)
    }

    fn poll(&mut self) -> Result<ExchangeState, LinkError> {
        if self.exchange.is_none() || !self.communicator.is_done()? {
            return Ok(ExchangeState::Pending);
        }
        match self.exchange.take() {
            None => Ok(ExchangeState::Pending),
            Some(Exchange::Send(_)) => Ok(ExchangeState::Sent),
            Some(Exchange::Receive(tensor)) => {
                let Self { backend, pool, landing, .. } = self;
                Ok(ExchangeState::Received(tensor.arrived(backend, pool, landing)?))
            }
        }
    }
}
