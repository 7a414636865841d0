//! Whether the calls of a device leave two streams to one piece of memory without an order.
//!
//! [`LoggedDevice`] records the calls of another device: which stream reads and writes which bytes,
//! and which stream waits for which. [`first_race`] goes through them with a vector clock for each
//! stream and one for the host: whatever reads must come after the last writer, and whatever writes
//! after the last writer and after all that have read since. What happened to come in the right
//! order on this machine does not count. A kernel counts as writing all buffers that it has a
//! pointer to, save an update's operands. What a kernel finds through a list in memory is not seen:
//! sums of squares reach gradients and the weights of candidates that way, in the stream that all
//! their readers are in.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use zbelastic_kernels::cuda::DeviceFault;
use zbelastic_kernels::cuda::device::{Device, DeviceAddress, MatrixProduct, ProductKind, Stream};
use zbelastic_kernels::cuda::kernel::{Kernel, Launch};
use zbelastic_kernels::cuda::source::Precision;

type ByteRange = Range<u64>;

/// A stream of one of the devices that write to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedStream {
    pub device: usize,
    pub stream: Stream,
}

/// A call of a device, as far as order is concerned.
#[derive(Clone, Debug)]
pub enum DeviceCall {
    /// Memory that was just allocated, whatever used it before.
    Allocated(ByteRange),
    /// Work in a stream.
    Work {
        stream: LoggedStream,
        reads: Vec<ByteRange>,
        writes: Vec<ByteRange>,
        /// Name of the kernel or of the call.
        what: &'static str,
    },
    /// Reads and writes of the host itself.
    Host { reads: Vec<ByteRange>, writes: Vec<ByteRange> },
    /// A fence in a stream, by its number.
    Fence { stream: LoggedStream, fence: usize },
    /// A stream waits for a fence.
    StreamWait { stream: LoggedStream, fence: usize },
    /// The host waits for a fence.
    HostWait { fence: usize },
    /// The host waits for a stream.
    Synchronize { stream: LoggedStream },
}

/// The calls of several devices, in order.
#[derive(Default)]
pub struct CallLog {
    calls: Mutex<Vec<DeviceCall>>,
}

impl CallLog {
    pub fn calls(&self) -> Vec<DeviceCall> {
        self.calls.lock().expect("no panic while it is held").clone()
    }

    fn push(&self, call: DeviceCall) {
        self.calls.lock().expect("no panic while it is held").push(call);
    }

    /// A fence is known by the place of its call.
    fn push_fence(&self, stream: LoggedStream) -> usize {
        let mut calls = self.calls.lock().expect("no panic while it is held");
        let fence = calls.len();
        calls.push(DeviceCall::Fence { stream, fence });
        fence
    }
}

/// A device that records its calls, and passes them on.
pub struct LoggedDevice<D> {
    inner: Arc<D>,
    log: Arc<CallLog>,
    device: usize,
    /// Allocations by where they start: their end, and buffers cut from them, in order.
    regions: Mutex<BTreeMap<u64, LoggedRegion>>,
}

struct LoggedRegion {
    end: u64,
    cuts: Vec<ByteRange>,
}

fn bytes(start: DeviceAddress, len: u64) -> ByteRange {
    start.0..start.0 + len
}

impl<D: Device> LoggedDevice<D> {
    /// The device with this number in the log.
    pub fn new(inner: Arc<D>, log: &Arc<CallLog>, device: usize) -> Arc<Self> {
        Arc::new(Self { inner, log: log.clone(), device, regions: Mutex::default() })
    }

    fn stream(&self, stream: Stream) -> LoggedStream {
        LoggedStream { device: self.device, stream }
    }

    fn work(
        &self,
        stream: Stream,
        work: &'static str,
        reads: Vec<ByteRange>,
        writes: Vec<ByteRange>,
    ) {
        self.log.push(DeviceCall::Work { stream: self.stream(stream), reads, writes, what: work });
    }

    /// The buffer that an address lies in, if it is one. What lies between buffers and was never
    /// filled with zeros is scratch, all of which counts as one.
    fn buffer_at(&self, address: u64) -> Option<ByteRange> {
        let regions = self.regions.lock().expect("no panic while it is held");
        let (start, region) = regions.range(..=address).next_back()?;
        if address >= region.end {
            return None;
        }
        let after = region.cuts.partition_point(|cut| cut.end <= address);
        let next = region.cuts.get(after);
        if let Some(cut) = next.filter(|cut| cut.contains(&address)) {
            return Some(cut.clone());
        }
        let before = after.checked_sub(1).map_or(*start, |last| region.cuts[last].end);
        Some(before..next.map_or(region.end, |cut| cut.start))
    }

    /// The first zeros of memory that was not touched yet are a buffer's.
    fn record_cut(&self, cut: ByteRange) {
        let mut regions = self.regions.lock().expect("no panic while it is held");
        let found = regions.range_mut(..=cut.start).next_back();
        let (_, region) = found.expect("zeros go to memory");
        if region.cuts.last().is_none_or(|last| last.end <= cut.start) && !cut.is_empty() {
            region.cuts.push(cut);
        }
    }
}

impl<D: Device> Device for LoggedDevice<D> {
    type Fence = (usize, D::Fence);

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn allocate(&self, len: u64) -> Result<DeviceAddress, DeviceFault> {
        let start = self.inner.allocate(len)?;
        let region = LoggedRegion { end: start.0 + len, cuts: Vec::new() };
        self.regions.lock().expect("no panic while it is held").insert(start.0, region);
        self.log.push(DeviceCall::Allocated(bytes(start, len)));
        Ok(start)
    }

    fn free(&self, address: DeviceAddress) {
        self.regions.lock().expect("no panic while it is held").remove(&address.0);
        self.inner.free(address);
    }

    fn allocate_host(&self, len: u64) -> Result<DeviceAddress, DeviceFault> {
        let start = self.inner.allocate_host(len)?;
        self.log.push(DeviceCall::Allocated(bytes(start, len)));
        Ok(start)
    }

    fn free_host(&self, address: DeviceAddress) {
        self.inner.free_host(address);
    }

    fn write_host(&self, from: &[u8], to: DeviceAddress) {
        let writes = vec![bytes(to, from.len() as u64)];
        self.log.push(DeviceCall::Host { reads: Vec::new(), writes });
        self.inner.write_host(from, to);
    }

    fn read_host(&self, from: DeviceAddress, to: &mut [u8]) {
        let reads = vec![bytes(from, to.len() as u64)];
        self.log.push(DeviceCall::Host { reads, writes: Vec::new() });
        self.inner.read_host(from, to);
    }

    fn zero(&self, to: DeviceAddress, len: u64) -> Result<(), DeviceFault> {
        self.record_cut(bytes(to, len));
        self.work(Stream::Compute, "zero", Vec::new(), vec![bytes(to, len)]);
        self.inner.zero(to, len)
    }

    fn read(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), DeviceFault> {
        let reads = vec![bytes(from, to.len() as u64)];
        self.work(Stream::Compute, "read", reads, Vec::new());
        self.log.push(DeviceCall::Synchronize { stream: self.stream(Stream::Compute) });
        self.inner.read(from, to)
    }

    fn copy(&self, from: DeviceAddress, to: DeviceAddress, len: u64) -> Result<(), DeviceFault> {
        self.work(Stream::Compute, "copy", vec![bytes(from, len)], vec![bytes(to, len)]);
        self.inner.copy(from, to, len)
    }

    fn copy_from_peer(
        &self,
        other: &Self,
        from: DeviceAddress,
        to: DeviceAddress,
        len: u64,
    ) -> Result<(), DeviceFault> {
        self.work(Stream::Compute, "copy_from", vec![bytes(from, len)], vec![bytes(to, len)]);
        self.inner.copy_from_peer(&other.inner, from, to, len)
    }

    fn copy_to_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        len: u64,
    ) -> Result<(), DeviceFault> {
        self.work(stream, "copy_out", vec![bytes(from, len)], vec![bytes(to, len)]);
        self.inner.copy_to_host(stream, from, to, len)
    }

    fn copy_from_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        len: u64,
    ) -> Result<(), DeviceFault> {
        self.work(stream, "copy_in", vec![bytes(from, len)], vec![bytes(to, len)]);
        self.inner.copy_from_host(stream, from, to, len)
    }

    fn record_fence(&self, stream: Stream) -> Result<Self::Fence, DeviceFault> {
        Ok((self.log.push_fence(self.stream(stream)), self.inner.record_fence(stream)?))
    }

    fn stream_wait(&self, stream: Stream, fence: &Self::Fence) -> Result<(), DeviceFault> {
        self.log.push(DeviceCall::StreamWait { stream: self.stream(stream), fence: fence.0 });
        self.inner.stream_wait(stream, &fence.1)
    }

    fn host_wait(&self, fence: &Self::Fence) -> Result<(), DeviceFault> {
        self.log.push(DeviceCall::HostWait { fence: fence.0 });
        self.inner.host_wait(&fence.1)
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for (index, word) in launch.arguments.words().iter().enumerate() {
            let to = if is_read(launch.kernel, index) { &mut reads } else { &mut writes };
            to.extend(self.buffer_at(*word));
        }
        self.work(Stream::Compute, launch.kernel.name(), reads, writes);
        self.inner.launch(launch)
    }

    fn multiply(&self, product: &MatrixProduct) -> Result<(), DeviceFault> {
        let MatrixProduct { kind, rows, outputs, inputs, left, right, result, addend } = *product;
        let row = self.precision().bytes();
        let [x, y, w] = [rows * inputs, rows * outputs, outputs * inputs];
        let [left_len, right_len, result_len] = match kind {
            ProductKind::Forward => [x * row, w * row, y * row],
            ProductKind::Input => [y * row, w * row, x * row],
            ProductKind::Weights { .. } => [y * row, x * row, w * 4],
        };
        let mut reads = vec![bytes(left, left_len as u64), bytes(right, right_len as u64)];
        reads.extend(addend.map(|addend| bytes(addend, result_len as u64)));
        self.work(Stream::Compute, "multiply", reads, vec![bytes(result, result_len as u64)]);
        self.inner.multiply(product)
    }
}

/// Whether a kernel only reads work this word of its arguments points to. An update does not write
/// work it is computed from: a stretch of `optimizer.cu` begins with pointers to weights, both
/// moments, the gradient, and where weights and packed weights go.
fn is_read(kernel: Kernel, word: usize) -> bool {
    let place = word % STRETCH_WORDS;
    (kernel == Kernel::AdamwCandidate && place < 4)
        || (matches!(kernel, Kernel::AdamwInPlace | Kernel::AdamwInPlaceSummed) && place == 3)
}

/// Words of eight bytes of the structure `Stretch`.
const STRETCH_WORDS: usize = 13;

/// Two uses of the same bytes, the later one not after the earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRace {
    /// The place of the later one in the log.
    pub at: usize,
    work: &'static str,
    bytes: ByteRange,
    /// `None` is the host.
    earlier: Option<LoggedStream>,
    later: Option<LoggedStream>,
}

impl fmt::Display for DataRace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, work, bytes, earlier, later } = self;
        let len = bytes.end - bytes.start;
        write!(f, "call {at}: {work} of {later:?} does not wait for {earlier:?} ({len} bytes)")
    }
}

/// How far each stream is known to be, by its number; 0 is the host.
type VectorClock = Vec<usize>;

fn join(clock: &mut VectorClock, other: &VectorClock) {
    clock.resize(clock.len().max(other.len()), 0);
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

/// A use of memory: the number of the stream, and which of its uses.
type MemoryUse = (usize, usize);

#[derive(Clone, Default)]
struct ShadowCell {
    end: u64,
    writer: Option<MemoryUse>,
    readers: Vec<MemoryUse>,
}

#[derive(Default)]
struct RaceChecker {
    /// The streams by their number, from 1.
    streams: Vec<LoggedStream>,
    clocks: Vec<VectorClock>,
    fences: BTreeMap<usize, VectorClock>,
    memory: BTreeMap<u64, ShadowCell>,
}

impl RaceChecker {
    fn number(&mut self, stream: LoggedStream) -> usize {
        let found = self.streams.iter().position(|known| *known == stream);
        let number = found.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        }) + 1;
        self.clocks.resize(self.clocks.len().max(number + 1), VectorClock::new());
        number
    }

    /// The next use of `number`, which comes after all that the host knew when it enqueued it.
    fn tick(&mut self, number: usize) -> MemoryUse {
        let host = self.clocks[0].clone();
        let clock = &mut self.clocks[number];
        join(clock, &host);
        clock.resize(clock.len().max(number + 1), 0);
        clock[number] += 1;
        (number, clock[number])
    }

    /// Cells that are exactly `bytes`, with nothing between them.
    fn cells(&mut self, bytes: &ByteRange) -> Vec<u64> {
        for edge in [bytes.start, bytes.end] {
            let found =
                self.memory.range(..edge).next_back().map(|(start, cell)| (*start, cell.end));
            if let Some((start, end)) = found
                && end > edge
            {
                let mut cell = self.memory[&start].clone();
                self.memory.get_mut(&start).expect("found above").end = edge;
                cell.end = end;
                self.memory.insert(edge, cell);
            }
        }
        let mut at = bytes.start;
        let known: Vec<ByteRange> =
            self.memory.range(bytes.clone()).map(|(start, cell)| *start..cell.end).collect();
        for cell in known.into_iter().chain(std::iter::once(bytes.end..bytes.end)) {
            if at < cell.start {
                self.memory.insert(at, ShadowCell { end: cell.start, ..ShadowCell::default() });
            }
            at = cell.end;
        }
        self.memory.range(bytes.clone()).map(|(start, _)| *start).collect()
    }

    /// Records work `own` does; returns a stream whose use should have come before and did not, and
    /// where.
    fn access(
        &mut self,
        own: MemoryUse,
        bytes: &ByteRange,
        is_write: bool,
    ) -> Option<(usize, ByteRange)> {
        let clock = self.clocks[own.0].clone();
        let knows =
            |(number, time): &MemoryUse| clock.get(*number).is_some_and(|known| known >= time);
        for start in self.cells(bytes) {
            let cell = self.memory.get_mut(&start).expect("made above");
            let readers = cell.readers.iter().filter(|_| is_write);
            let before = cell.writer.iter().chain(readers).find(|before| !knows(before));
            if let Some((number, _)) = before {
                return Some((*number, start..cell.end));
            }
            if is_write {
                *cell = ShadowCell { end: cell.end, writer: Some(own), readers: Vec::new() };
            } else {
                cell.readers.retain(|(number, _)| *number != own.0);
                cell.readers.push(own);
            }
        }
        None
    }

    fn uses(
        &mut self,
        (at, number): (usize, usize),
        work: &'static str,
        (reads, writes): (&[ByteRange], &[ByteRange]),
    ) -> Option<DataRace> {
        let own = self.tick(number);
        let reads = reads.iter().map(|bytes| (bytes, false));
        for (bytes, is_write) in reads.chain(writes.iter().map(|bytes| (bytes, true))) {
            if let Some((earlier, bytes)) = self.access(own, bytes, is_write) {
                let name = |number: usize| number.checked_sub(1).map(|index| self.streams[index]);
                let earlier = name(earlier);
                let later = name(number);
                return Some(DataRace { at, work, bytes, earlier, later });
            }
        }
        None
    }

    fn check(&mut self, at: usize, call: &DeviceCall) -> Option<DataRace> {
        match call {
            DeviceCall::Allocated(bytes) => {
                for start in self.cells(bytes) {
                    self.memory.remove(&start);
                }
            }
            DeviceCall::Work { stream, reads, writes, what: work } => {
                let number = self.number(*stream);
                return self.uses((at, number), work, (reads, writes));
            }
            DeviceCall::Host { reads, writes } => {
                return self.uses((at, 0), "the host's own", (reads, writes));
            }
            DeviceCall::Fence { stream, fence } => {
                let number = self.number(*stream);
                self.tick(number);
                self.fences.insert(*fence, self.clocks[number].clone());
            }
            DeviceCall::StreamWait { stream, fence } => {
                let number = self.number(*stream);
                join(&mut self.clocks[number], &self.fences[fence]);
            }
            DeviceCall::HostWait { fence } => join(&mut self.clocks[0], &self.fences[fence]),
            DeviceCall::Synchronize { stream } => {
                let number = self.number(*stream);
                let clock = self.clocks[number].clone();
                join(&mut self.clocks[0], &clock);
            }
        }
        None
    }
}

/// The first race in the calls, if those that `is_left_out` names had not been made.
pub fn first_race(calls: &[DeviceCall], is_left_out: impl Fn(usize) -> bool) -> Option<DataRace> {
    let mut checker = RaceChecker { clocks: vec![VectorClock::new()], ..RaceChecker::default() };
    let made = calls.iter().enumerate().filter(|(at, _)| !is_left_out(*at));
    made.filter_map(|(at, call)| checker.check(at, call)).next()
}

/// The kind of a wait, which is a call of [`Device::stream_wait`] or [`Device::host_wait`]: the
/// stream that waits (`None` is the host), the stream that it waits for, and whether that is
/// another device's.
pub type WaitKind = (Option<Stream>, Stream, bool);

/// The waits, each with its place in the log.
pub fn waits(calls: &[DeviceCall]) -> Vec<(usize, WaitKind)> {
    let of = |fence: usize| {
        let DeviceCall::Fence { stream, .. } = calls[fence] else {
            unreachable!("a fence is known by the place of its call")
        };
        stream
    };
    let kind = |(at, call): (usize, &DeviceCall)| match call {
        DeviceCall::StreamWait { stream, fence } => {
            let other = of(*fence);
            Some((at, (Some(stream.stream), other.stream, stream.device != other.device)))
        }
        DeviceCall::HostWait { fence } => Some((at, (None, of(*fence).stream, false))),
        DeviceCall::Allocated(_)
        | DeviceCall::Work { .. }
        | DeviceCall::Host { .. }
        | DeviceCall::Fence { .. }
        | DeviceCall::Synchronize { .. } => None,
    };
    calls.iter().enumerate().filter_map(kind).collect()
}
