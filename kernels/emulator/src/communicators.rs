//! The calls of NCCL: communicators of two ranks, and sends and receives as a stream's work.
//!
//! Rank 0 is where the id was made. All else that NCCL has is refused.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;
use cudarc::nccl::sys::{
    self, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclResult_t, ncclUniqueId,
};

use crate::driver::{calls, current_device, enqueue};
use crate::machine::exchange::{CommunicatorRank, Exchange, ExchangeKind};
use crate::machine::work::StreamWork;
use crate::names::name_of;

const VERSION: c_int = 22_203;
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// The mark of an id that was made here, before the port that it names.
const MARK: [u8; 4] = *b"rank";
const FIRST_HANDLE: u64 = 0x10;

type NcclResult = Result<(), ncclResult_t>;

/// Communicators by their handles, and ports that were promised by ids.
struct Communicators {
    ranks: BTreeMap<u64, Arc<CommunicatorRank>>,
    listeners: BTreeMap<u16, TcpListener>,
    made: u64,
}

static COMMUNICATORS: Mutex<Communicators> =
    Mutex::new(Communicators { ranks: BTreeMap::new(), listeners: BTreeMap::new(), made: 0 });

fn communicators() -> MutexGuard<'static, Communicators> {
    COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn result_of(result: NcclResult) -> ncclResult_t {
    result.err().unwrap_or(ncclResult_t::ncclSuccess)
}

fn rank_of(comm: ncclComm_t) -> Result<Arc<CommunicatorRank>, ncclResult_t> {
    let found = communicators().ranks.get(&(comm as u64)).cloned();
    found.ok_or(ncclResult_t::ncclInvalidArgument)
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> NcclResult {
    if to.is_null() {
        return Err(ncclResult_t::ncclInvalidArgument);
    }
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

fn exchange(
    kind: ExchangeKind,
    (address, count, of): (u64, usize, ncclDataType_t),
    (peer, comm): (c_int, ncclComm_t),
    stream: cudaStream_t,
) -> NcclResult {
    let rank = rank_of(comm)?;
    let is_other = matches!((kind, peer), (ExchangeKind::Send, 0) | (ExchangeKind::Receive, 1));
    if of != ncclDataType_t::ncclUint8 || !is_other {
        return Err(ncclResult_t::ncclInvalidArgument);
    }
    // Before it is initialized nothing may be enqueued.
    let state = rank.state();
    if state == ncclResult_t::ncclInProgress {
        return Err(ncclResult_t::ncclInvalidUsage);
    }
    if state != ncclResult_t::ncclSuccess {
        return Err(state);
    }
    let exchange = Exchange::new(kind, rank.next_number(), (address, count));
    let work = StreamWork::Exchange(rank, Arc::new(exchange));
    let enqueued = enqueue(stream as u64, work) == CUresult::CUDA_SUCCESS;
    if enqueued { Ok(()) } else { Err(ncclResult_t::ncclUnhandledCudaError) }
}

calls! {
    fn ncclGetVersion(to: *mut c_int) -> ncclResult_t {
        // SAFETY: the caller's pointer.
        result_of(unsafe { put(to, VERSION) })
    }

    fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
        name_of(result)
    }

    fn ncclGetUniqueId(to: *mut ncclUniqueId) -> ncclResult_t {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?.port(), listener))
        });
        let Ok((port, listener)) = listening else { return ncclResult_t::ncclSystemError };
        let mut id = ncclUniqueId { internal: [0; 128] };
        let named = MARK.into_iter().chain(port.to_le_bytes());
        id.internal.iter_mut().zip(named).for_each(|(to, byte)| *to = byte as c_char);
        communicators().listeners.insert(port, listener);
        // SAFETY: the caller's pointer.
        result_of(unsafe { put(to, id) })
    }

    fn ncclCommInitRankConfig(
        to: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        let Some(device) = current_device() else { return ncclResult_t::ncclUnhandledCudaError };
        // SAFETY: the caller's pointer.
        let Some(config) = (unsafe { config.as_ref() }) else {
            return ncclResult_t::ncclInvalidArgument;
        };
        let bytes = id.internal.map(|byte| byte.to_ne_bytes()[0]);
        let is_marked = bytes.starts_with(&MARK);
        let is_known = config.magic == CONFIG_MAGIC && config.size == size_of::<ncclConfig_t>();
        // Calls that wait are not made: a peer may never come.
        if ranks != 2 || config.blocking != 0 || !is_known || !is_marked {
            return ncclResult_t::ncclInvalidArgument;
        }
        let port = u16::from_le_bytes([bytes[MARK.len()], bytes[MARK.len() + 1]]);
        let mut all = communicators();
        let begun = match rank {
            0 => all.listeners.remove(&port).map(|own| CommunicatorRank::listening(device, own)),
            1 => Some(CommunicatorRank::dialing(device, port)),
            _ => None,
        };
        let Some(begun) = begun else { return ncclResult_t::ncclInvalidArgument };
        all.made += 1;
        let handle = FIRST_HANDLE * all.made;
        all.ranks.insert(handle, Arc::new(begun));
        // SAFETY: the caller's pointer.
        unsafe { put(to, handle as ncclComm_t) }.err().unwrap_or(ncclResult_t::ncclInProgress)
    }

    fn ncclCommGetAsyncError(comm: ncclComm_t, to: *mut ncclResult_t) -> ncclResult_t {
        // SAFETY: the caller's pointer.
        result_of(rank_of(comm).and_then(|rank| unsafe { put(to, rank.state()) }))
    }

    fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
        result_of(rank_of(comm).map(|rank| {
            rank.abort();
            communicators().ranks.remove(&(comm as u64));
        }))
    }

    fn ncclSend(
        from: *const c_void, count: usize, of: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        result_of(exchange(ExchangeKind::Send, (from as u64, count, of), (peer, comm), stream))
    }

    fn ncclRecv(
        to: *mut c_void, count: usize, of: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        result_of(exchange(ExchangeKind::Receive, (to as u64, count, of), (peer, comm), stream))
    }
}
