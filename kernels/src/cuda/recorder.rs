//! A device whose commands are written down first, and issued when their results must be seen.
//!
//! Launches, products and copies wait here until a border: whatever the host reads or writes, memory that
//! is given back, the end of an operation ([`Recorder::flush`]), or as many commands as a segment may have.
//! Then they are issued in order, one by one or as a graph ([`super::segments`]). So nothing above knows of
//! graphs, and nothing that waits can be overtaken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Address, Command, Device, Product, Stream};
use super::error::DeviceFault;
use super::kernel::{Kernel, Launch};
use super::segments::{Decision, Limits, Segments};
use super::source::Precision;

/// Whether segments that come again become graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graphs {
    /// Each command is issued at once, by itself.
    Off,
    /// Segments that come again become graphs, within these limits.
    On(Limits),
}

impl Graphs {
    /// The setting that training uses.
    pub const PLAIN: Self = Self::On(Limits::PLAIN);
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
    /// Graphs that there are now.
    pub held: usize,
    /// Segments that the device did not make a graph of. After the first one none is tried.
    pub refused: u64,
}

/// A device behind the list of commands that wait for it.
pub(super) struct Recorder<D: Device> {
    device: Arc<D>,
    /// Held while the list is written or issued: memory may be given back on another thread than the one
    /// that computes.
    state: Mutex<State>,
}

struct State {
    graphs: Option<(Segments, Limits)>,
    commands: Vec<Command>,
    counts: GraphCounts,
    /// A fault that could not be returned where it occurred: the next flush returns it.
    fault: Option<DeviceFault>,
}

impl<D: Device> Recorder<D> {
    pub(super) fn new(device: Arc<D>, graphs: Graphs) -> Self {
        let graphs = match graphs {
            Graphs::Off => None,
            Graphs::On(limits) => Some((Segments::new(limits), limits)),
        };
        let (commands, counts) = (Vec::new(), GraphCounts::default());
        Self { device, state: Mutex::new(State { graphs, commands, counts, fault: None }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues all commands that wait to the device.
    pub(super) fn flush(&self) -> Result<(), DeviceFault> {
        self.state().flush(&*self.device)
    }

    /// The commands that wait are of the stream that work goes into: the other streams go beside it.
    fn flush_before(&self, stream: Stream) -> Result<(), DeviceFault> {
        match stream {
            Stream::Compute => self.flush(),
            Stream::Out | Stream::In => Ok(()),
        }
    }

    /// How commands were issued so far.
    pub(super) fn counts(&self) -> GraphCounts {
        let state = self.state();
        let held = state.graphs.as_ref().map_or(0, |(segments, _)| segments.graphs());
        GraphCounts { held, ..state.counts }
    }

    fn write_down(&self, command: Command) -> Result<(), DeviceFault> {
        let mut state = self.state();
        let limit = state.graphs.as_ref().map_or(1, |(_, limits)| limits.commands_max);
        state.commands.push(command);
        if state.commands.len() < limit { Ok(()) } else { state.flush(&*self.device) }
    }
}

impl State {
    /// From now on all commands are issued one by one.
    fn forget_graphs<D: Device>(&mut self, device: &D) {
        if let Some((segments, _)) = self.graphs.take() {
            segments.into_graphs().for_each(|graph| device.forget(graph));
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
        let told = self.tell(device, &commands);
        // The list keeps its memory.
        self.commands = commands;
        self.commands.clear();
        told
    }

    /// Moments are noted where an operation begins and ends, and in a timed turn for each layer, each in a
    /// place of its own. What lies between two of an operation comes again without them.
    fn tell<D: Device>(&mut self, device: &D, commands: &[Command]) -> Result<(), DeviceFault> {
        let first = commands.iter().position(|command| !is_moment(command));
        let last = commands.iter().rposition(|command| !is_moment(command));
        let work = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
        self.issue(device, &commands[..work.start])?;
        self.tell_work(device, &commands[work.clone()])?;
        self.issue(device, &commands[work.end..])
    }

    fn issue<D: Device>(&mut self, device: &D, commands: &[Command]) -> Result<(), DeviceFault> {
        self.counts.issued += commands.len() as u64;
        commands.iter().try_for_each(|command| command.tell(device))
    }

    fn tell_work<D: Device>(
        &mut self,
        device: &D,
        commands: &[Command],
    ) -> Result<(), DeviceFault> {
        if let Some((segments, _)) = &mut self.graphs
            && !commands.iter().any(is_moment)
        {
            let mut words = Vec::new();
            commands.iter().for_each(|command| command.write_words(&mut words));
            match segments.decide(commands.len(), &words) {
                Decision::Replay(graph) => {
                    self.counts.replayed += 1;
                    return device.replay(graph);
                }
                Decision::Capture => {
                    if let Some(graph) = device.capture(commands)? {
                        self.counts.captured += 1;
                        self.counts.replayed += 1;
                        if let Some(gone) = segments.keep(words, graph) {
                            device.forget(gone);
                        }
                        return device.replay(graph);
                    }
                    self.counts.refused += 1;
                    self.forget_graphs(device);
                }
                Decision::Issue => {}
            }
        }
        self.issue(device, commands)
    }
}

fn is_moment(command: &Command) -> bool {
    match command {
        Command::Launch(launch) => launch.kernel == Kernel::Stamp,
        Command::Multiply(_) | Command::Copy { .. } => false,
    }
}

impl<D: Device> Device for Recorder<D> {
    type Fence = D::Fence;

    fn precision(&self) -> Precision {
        self.device.precision()
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceFault> {
        self.device.allocate(bytes)
    }

    /// Commands that wait may use the memory, so they are issued first.
    fn free(&self, address: Address) {
        let mut state = self.state();
        if let Err(fault) = state.flush(&*self.device) {
            state.fault = Some(fault);
        }
        self.device.free(address);
    }

    fn zero(&self, to: Address, bytes: u64) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.zero(to, bytes)
    }

    fn allocate_host(&self, bytes: u64) -> Result<Address, DeviceFault> {
        self.device.allocate_host(bytes)
    }

    fn free_host(&self, address: Address) {
        self.device.free_host(address);
    }

    fn write_host(&self, from: &[u8], to: Address) {
        self.device.write_host(from, to);
    }

    fn read_host(&self, from: Address, to: &mut [u8]) {
        self.device.read_host(from, to);
    }

    fn copy_from(
        &self,
        other: &Self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.copy_from(&other.device, from, to, bytes)
    }

    fn copy_out(
        &self,
        stream: Stream,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.copy_out(stream, from, to, bytes)
    }

    fn copy_in(
        &self,
        stream: Stream,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.copy_in(stream, from, to, bytes)
    }

    fn fence(&self, stream: Stream) -> Result<D::Fence, DeviceFault> {
        self.flush_before(stream)?;
        self.device.fence(stream)
    }

    fn follow(&self, stream: Stream, fence: &D::Fence) -> Result<(), DeviceFault> {
        self.flush_before(stream)?;
        self.device.follow(stream, fence)
    }

    fn reach(&self, fence: &D::Fence) -> Result<(), DeviceFault> {
        self.device.reach(fence)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceFault> {
        self.flush()?;
        self.device.read(from, to)
    }

    fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), DeviceFault> {
        self.write_down(Command::Copy { from, to, bytes })
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        self.write_down(Command::Launch(launch.clone()))
    }

    fn multiply(&self, product: &Product) -> Result<(), DeviceFault> {
        self.write_down(Command::Multiply(*product))
    }
}

impl<D: Device> Drop for Recorder<D> {
    /// What still waits is about memory that nobody can read any more; graphs go with their owner.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.forget_graphs(&*self.device);
    }
}
