//! Bytes that two ranks of a communicator exchange, each in a stream of its own machine.
//!
//! Whether a send is over when it has its turn, or when its receive has come to the same one, NCCL
//! leaves open; both are there ([`ExchangeManners`]). An aborted rank does not tell the other one.
//! The ranks may be two processes; what passes between them is a connection over the loopback that
//! no call waits for.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::nccl::sys::ncclResult_t;

use super::memory::MemoryBlocks;
use super::work::InvalidAccess;

/// Bytes of a number between ranks.
const NUMBER_BYTES: usize = 8;

/// How far a rank is with its communicator.
enum RankState {
    /// Rank 0 waits for the other.
    Listens(TcpListener),
    /// Rank 1 connects to this port.
    Dials(u16),
    /// Connected; the other's device is being read.
    Greets(TcpStream, PartialNumber),
    Ready(RankConnection),
    Failed(ncclResult_t),
    /// What is still in a stream ends without effect.
    Aborted,
}

impl RankState {
    fn result(&self) -> ncclResult_t {
        match self {
            Self::Listens(_) | Self::Dials(_) | Self::Greets(..) => ncclResult_t::ncclInProgress,
            Self::Ready(_) => ncclResult_t::ncclSuccess,
            Self::Failed(result) => *result,
            Self::Aborted => ncclResult_t::ncclInvalidUsage,
        }
    }
}

/// The connection of two ranks that are ready.
struct RankConnection {
    stream: TcpStream,
    /// Receives that the other end has posted, and how much of the next was read.
    posted: u64,
    next: PartialNumber,
}

/// What NCCL leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeManners {
    /// A send is over once its bytes have left, whether or not a receive was posted.
    pub is_eager: bool,
    /// The end of the other process is an error; else nothing happens any more.
    pub notices_ends: bool,
}

/// One rank of a communicator.
pub struct CommunicatorRank {
    /// Index of the device that it exchanges for.
    device: usize,
    state: Mutex<RankState>,
    /// Exchanges that were enqueued.
    enqueued: AtomicU64,
}

/// A number of which some bytes were read.
#[derive(Default)]
struct PartialNumber {
    bytes: [u8; NUMBER_BYTES],
    count: usize,
}

impl PartialNumber {
    /// Reads on; the number, once all its bytes have come.
    fn read(&mut self, mut from: &TcpStream) -> io::Result<Option<u64>> {
        let count = advance(self.count, NUMBER_BYTES, |at| from.read(&mut self.bytes[at..]))?;
        self.count = count;
        Ok((count == NUMBER_BYTES).then(|| u64::from_le_bytes(self.bytes)))
    }
}

/// Goes on from `done` to `all` bytes as far as it goes without a wait.
fn advance(
    mut done: usize,
    all: usize,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    while done < all {
        match step(done) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl CommunicatorRank {
    /// Rank 0 of a communicator, which the other connects to.
    pub fn listening(device: usize, listener: TcpListener) -> Self {
        Self::new(device, RankState::Listens(listener))
    }

    /// Rank 1, which connects to this port.
    pub fn dialing(device: usize, port: u16) -> Self {
        Self::new(device, RankState::Dials(port))
    }

    fn new(device: usize, state: RankState) -> Self {
        Self { device, state: Mutex::new(state), enqueued: AtomicU64::new(0) }
    }

    /// The number of an exchange that is about to be enqueued, counted from 0.
    pub fn next_number(&self) -> u64 {
        self.enqueued.fetch_add(1, Ordering::Relaxed)
    }

    /// How the communicator is, as `ncclCommGetAsyncError` reports it. Its initialization goes on
    /// meanwhile.
    pub fn state(&self) -> ncclResult_t {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let greeted = |stream: TcpStream| -> io::Result<RankState> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            (&stream).write_all(&(self.device as u64).to_le_bytes())?;
            Ok(RankState::Greets(stream, PartialNumber::default()))
        };
        let next = match &mut *state {
            RankState::Listens(listener) => match listener.accept() {
                Ok((stream, _)) => greeted(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return state.result(),
                Err(error) => Err(error),
            },
            RankState::Dials(port) => {
                TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).and_then(greeted)
            }
            RankState::Greets(stream, other) => match other.read(stream) {
                Ok(None) => return state.result(),
                // Two ranks on one device are refused, as NCCL does without a setting.
                Ok(Some(device)) if device == self.device as u64 => {
                    Ok(RankState::Failed(ncclResult_t::ncclInvalidUsage))
                }
                Ok(Some(_)) => stream.try_clone().map(|stream| {
                    let next = PartialNumber::default();
                    RankState::Ready(RankConnection { stream, posted: 0, next })
                }),
                Err(error) => Err(error),
            },
            RankState::Ready(_) | RankState::Failed(_) | RankState::Aborted => {
                return state.result();
            }
        };
        *state = next.unwrap_or(RankState::Failed(ncclResult_t::ncclRemoteError));
        state.result()
    }

    /// Ends it: exchanges in streams end without effect. The other end is not told: its connection
    /// stays open as long as this process lives.
    pub fn abort(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let RankState::Ready(connection) = mem::replace(&mut *state, RankState::Aborted) {
            mem::forget(connection.stream);
        }
    }
}

/// Which of the two does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    Send,
    Receive,
}

/// How far an exchange is.
#[derive(Default)]
struct ExchangeProgress {
    is_posted: bool,
    /// The sender's length, which the receiver compares.
    length: PartialNumber,
    is_compared: bool,
    done: usize,
    /// What has arrived of the bytes: they are written at the end.
    arrived: Vec<u8>,
}

/// A send or a receive in a stream.
pub struct Exchange {
    kind: ExchangeKind,
    /// Its number among those of its rank.
    number: u64,
    address: u64,
    bytes: usize,
    progress: Mutex<ExchangeProgress>,
}

impl fmt::Debug for CommunicatorRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a rank of device {}", self.device)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} of {} bytes", self.kind, self.number, self.bytes)
    }
}

impl Exchange {
    /// The exchange of this number of its rank.
    pub fn new(kind: ExchangeKind, number: u64, (address, bytes): (u64, usize)) -> Self {
        Self { kind, number, address, bytes, progress: Mutex::default() }
    }

    /// Goes on as far as it goes without a wait. True if it is over.
    ///
    /// # Errors
    /// If its memory is in no block.
    pub fn advance(
        &self,
        rank: &CommunicatorRank,
        manners: ExchangeManners,
        blocks: &MemoryBlocks,
    ) -> Result<bool, InvalidAccess> {
        blocks.owner_of(self.address, self.bytes).ok_or(InvalidAccess)?;
        let mut state = rank.state.lock().unwrap_or_else(PoisonError::into_inner);
        let RankState::Ready(connection) = &mut *state else { return Ok(true) };
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let advanced = match self.kind {
            ExchangeKind::Send => self.send(connection, &mut progress, manners.is_eager),
            ExchangeKind::Receive => self.receive(&connection.stream, &mut progress),
        };
        Ok(advanced.unwrap_or_else(|error| {
            let is_mismatch = error.kind() == ErrorKind::InvalidData;
            if is_mismatch {
                *state = RankState::Failed(ncclResult_t::ncclInvalidUsage);
            } else if manners.notices_ends {
                *state = RankState::Failed(ncclResult_t::ncclRemoteError);
            }
            is_mismatch || manners.notices_ends
        }))
    }

    fn send(
        &self,
        connection: &mut RankConnection,
        progress: &mut ExchangeProgress,
        is_eager: bool,
    ) -> io::Result<bool> {
        let RankConnection { stream, posted, next } = connection;
        while !is_eager && *posted <= self.number {
            if next.read(stream)?.is_none() {
                return Ok(false);
            }
            *next = PartialNumber::default();
            *posted += 1;
        }
        if !progress.is_posted {
            stream.write_all(&(self.bytes as u64).to_le_bytes())?;
            progress.is_posted = true;
        }
        // SAFETY: it lies within a block, and the stream that it is in may read it.
        let bytes = unsafe { slice::from_raw_parts(self.address as *const u8, self.bytes) };
        progress.done = advance(progress.done, self.bytes, |at| stream.write(&bytes[at..]))?;
        Ok(progress.done == self.bytes)
    }

    fn receive(&self, mut stream: &TcpStream, progress: &mut ExchangeProgress) -> io::Result<bool> {
        if !progress.is_posted {
            stream.write_all(&self.number.to_le_bytes())?;
            progress.is_posted = true;
            progress.arrived = vec![0; self.bytes];
        }
        if !progress.is_compared {
            let Some(length) = progress.length.read(stream)? else { return Ok(false) };
            if length != self.bytes as u64 {
                return Err(ErrorKind::InvalidData.into());
            }
            progress.is_compared = true;
        }
        let ExchangeProgress { done, arrived, .. } = progress;
        *done = advance(*done, self.bytes, |at| stream.read(&mut arrived[at..]))?;
        if *done < self.bytes {
            return Ok(false);
        }
        // SAFETY: it lies within a block, and the stream that it is in may write it.
        let to = unsafe { slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) };
        to.copy_from_slice(arrived);
        Ok(true)
    }
}
