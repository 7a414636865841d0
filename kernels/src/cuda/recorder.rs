//! A device whose commands are recorded first, and issued when their results must be seen.
//!
//! Launches, products and copies wait here until a border: whatever the host reads or writes,
//! memory that is freed, the end of an operation ([`CommandRecorder::flush`]), or as many commands
//! as a segment may have. Then they are issued in order, one by one or as a graph
//! ([`super::segments`]). So nothing above knows of graphs, and nothing that waits can be
//! overtaken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Device, DeviceAddress, DeviceCommand, MatrixProduct, Stream};
use super::error::DeviceFault;
use super::kernel::{Kernel, Launch};
use super::segments::{GraphLimits, SegmentCache, SegmentDecision};
use super::source::Precision;
use super::streams::PrimaryContext;

/// Whether segments that come again become graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphMode {
    /// Each command is issued at once, by itself.
    Off,
    /// Segments that come again become graphs, within these limits.
    On(GraphLimits),
}

impl GraphMode {
    /// The setting that training uses.
    pub const DEFAULT: Self = Self::On(GraphLimits::DEFAULT);
}

/// Counts of how commands were issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Commands that were issued one by one.
    pub issued: u64,
    /// Graphs that were made.
    pub captured: u64,
    /// Graphs that were started.
    pub replayed: u64,
    /// Graphs that exist now.
    pub held: usize,
    /// Segments that the device did not make a graph of. After the first one none is tried.
    pub refused: u64,
}

/// A device behind the list of commands that wait for it.
pub(super) struct CommandRecorder<D: Device> {
    device: Arc<D>,
    /// Held while the list is written or issued: memory may be freed on another thread than the one
    /// that computes.
    state: Mutex<RecorderState>,
}

struct RecorderState {
    graphs: Option<(SegmentCache, GraphLimits)>,
    commands: Vec<DeviceCommand>,
    counts: GraphCounts,
    /// A fault that could not be returned where it occurred: the next flush returns it.
    fault: Option<DeviceFault>,
}

impl<D: Device> CommandRecorder<D> {
    pub(super) fn new(device: Arc<D>, graphs: GraphMode) -> Self {
        let graphs = match graphs {
            GraphMode::Off => None,
            GraphMode::On(limits) => Some((SegmentCache::new(limits), limits)),
        };
        let commands = Vec::new();
        let counts = GraphCounts::default();
        Self { device, state: Mutex::new(RecorderState { graphs, commands, counts, fault: None }) }
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues all commands that wait to the device.
    pub(super) fn flush(&self) -> Result<(), DeviceFault> {
        self.state().flush(&*self.device)
    }

    /// The commands that wait are of the stream that work goes into: the other streams go beside
    /// it.
    fn flush_before(&self, stream: Stream) -> Result<(), DeviceFault> {
        match stream {
            Stream::Compute => self.flush(),
            Stream::Download | Stream::Upload => Ok(()),
        }
    }

    /// How commands were issued so far.
    pub(super) fn counts(&self) -> GraphCounts {
        let state = self.state();
        let held = state.graphs.as_ref().map_or(0, |(segments, _)| segments.graphs());
        GraphCounts { held, ..state.counts }
    }

    fn record(&self, command: DeviceCommand) -> Result<(), DeviceFault> {
        let mut state = self.state();
        let limit = state.graphs.as_ref().map_or(1, |(_, limits)| limits.commands_max);
        state.commands.push(command);
        if state.commands.len() < limit { Ok(()) } else { state.flush(&*self.device) }
    }
}

impl RecorderState {
    /// From now on all commands are issued one by one.
    fn destroy_graphs<D: Device>(&mut self, device: &D) {
        if let Some((segments, _)) = self.graphs.take() {
            segments.into_graphs().for_each(|graph| device.destroy_graph(graph));
        }
    }

    fn flush<D: Device>(&mut self, device: &D) -> Result<(), DeviceFault> {
        if let Some(fault) = self.fault.take() {
            self.commands.clear();
            return Err(fault);
        }
        if self.commands.is_empty() {
            return Ok(());
        }
        let commands = std::mem::take(&mut self.commands);
        let issued = self.issue_segment(device, &commands);
        // The list keeps its memory.
        self.commands = commands;
        self.commands.clear();
        issued
    }

    /// Timestamps are recorded where an operation begins and ends, and in a timed turn for each
    /// layer, each in a place of its own. What lies between the two of an operation comes again
    /// without them.
    fn issue_segment<D: Device>(
        &mut self,
        device: &D,
        commands: &[DeviceCommand],
    ) -> Result<(), DeviceFault> {
        let first = commands.iter().position(|command| !is_timestamp(command));
        let last = commands.iter().rposition(|command| !is_timestamp(command));
        let work = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
        self.issue(device, &commands[..work.start])?;
        self.issue_or_replay(device, &commands[work.clone()])?;
        self.issue(device, &commands[work.end..])
    }

    fn issue<D: Device>(
        &mut self,
        device: &D,
        commands: &[DeviceCommand],
    ) -> Result<(), DeviceFault> {
        self.counts.issued += commands.len() as u64;
        commands.iter().try_for_each(|command| command.issue(device))
    }

    fn issue_or_replay<D: Device>(
        &mut self,
        device: &D,
        commands: &[DeviceCommand],
    ) -> Result<(), DeviceFault> {
        if let Some((segments, _)) = &mut self.graphs
            && !commands.iter().any(is_timestamp)
        {
            let mut words = Vec::new();
            commands.iter().for_each(|command| command.write_words(&mut words));
            match segments.decide(commands.len(), &words) {
                SegmentDecision::Replay(graph) => {
                    self.counts.replayed += 1;
                    return device.replay(graph);
                }
                SegmentDecision::Capture => {
                    if let Some(graph) = device.capture(commands)? {
                        self.counts.captured += 1;
                        self.counts.replayed += 1;
                        if let Some(evicted) = segments.insert(words, graph) {
                            device.destroy_graph(evicted);
                        }
                        return device.replay(graph);
                    }
                    self.counts.refused += 1;
                    self.destroy_graphs(device);
                }
                SegmentDecision::Issue => {}
            }
        }
        self.issue(device, commands)
    }
}

fn is_timestamp(command: &DeviceCommand) -> bool {
    match command {
        DeviceCommand::Launch(launch) => launch.kernel == Kernel::Stamp,
        DeviceCommand::Multiply(_) | DeviceCommand::Copy { .. } => false,
    }
}

impl<D: Device> Device for CommandRecorder<D> {
    type Fence = D::Fence;

    fn precision(&self) -> Precision {
        self.device.precision()
    }

    fn primary_context(&self) -> Result<Option<Arc<PrimaryContext>>, DeviceFault> {
        self.device.primary_context()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        self.device.allocate(bytes)
    }

    /// Commands that wait may use the memory, so they are issued first.
    fn free(&self, address: DeviceAddress) {
        let mut state = self.state();
        if let Err(fault) = state.flush(&*self.device) {
            state.fault = Some(fault);
        }
        self.device.free(address);
    }

    fn zero(&self, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.zero(to, bytes)
    }

    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DeviceFault> {
        self.device.allocate_host(bytes)
    }

    fn free_host(&self, address: DeviceAddress) {
        self.device.free_host(address);
    }

    fn write_host(&self, from: &[u8], to: DeviceAddress) {
        self.device.write_host(from, to);
    }

    fn read_host(&self, from: DeviceAddress, to: &mut [u8]) {
        self.device.read_host(from, to);
    }

    fn copy_from_peer(
        &self,
        other: &Self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.copy_from_peer(&other.device, from, to, bytes)
    }

    fn copy_to_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.copy_to_host(stream, from, to, bytes)
    }

    fn copy_from_host(
        &self,
        stream: Stream,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.copy_from_host(stream, from, to, bytes)
    }

    fn record_fence(&self, stream: Stream) -> Result<D::Fence, DeviceFault> {
        self.flush_before(stream)?;
        self.device.record_fence(stream)
    }

    fn stream_wait(&self, stream: Stream, fence: &D::Fence) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.stream_wait(stream, fence)
    }

    fn host_wait(&self, fence: &D::Fence) -> Result<(), DeviceFault> {
        self.device.host_wait(fence)
    }

    fn read(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.read(from, to)
    }

    fn copy(&self, from: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), DeviceFault> {
        self.record(DeviceCommand::Copy { from, to, bytes })
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        self.record(DeviceCommand::Launch(launch.clone()))
    }

    fn multiply(&self, product: &MatrixProduct) -> Result<(), DeviceFault> {
        self.record(DeviceCommand::Multiply(*product))
    }
}

impl<D: Device> Drop for CommandRecorder<D> {
    /// Commands that still wait write memory that no caller can read any more; graphs are destroyed
    /// with their owner.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.destroy_graphs(&*self.device);
    }
}
