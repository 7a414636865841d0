//! A machine with devices as a state that calls change: memory, streams, events and graphs.
//!
//! Nothing happens by itself. Work that was enqueued waits in its stream until a rule
//! ([`ExecutionOrder`]) or a caller that waits for it has it done, by the thread that calls; so a
//! run with one thread has one course for each setting.

pub mod exchange;
pub mod memory;
pub mod product;
mod streams;
#[cfg(test)]
mod tests;
pub mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUresult;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::code::{KernelLibrary, LoadedKernel};
use crate::settings::{EmulatorSettings, ExecutionOrder};
use memory::MemoryBlocks;
pub use streams::{EmulatedEvent, EmulatedStream};
use work::StreamWork;

/// What a call of the driver returns.
pub type DriverResult<T> = Result<T, CUresult>;

/// A device of the machine.
pub struct DeviceState {
    /// How many holders have retained its primary context.
    pub holders: u32,
    /// The code that every call returns from now on.
    pub fault: Option<CUresult>,
    /// Devices whose memory this one may read.
    pub peers: Vec<usize>,
}

/// A kernel in a context.
pub struct LoadedFunction {
    pub device: usize,
    pub kernel: LoadedKernel,
    /// Shared memory that a launch may request.
    pub shared_bytes_max: u32,
    /// The module that has its code.
    pub module: u64,
}

/// Loaded code, in a context.
pub struct LoadedModule {
    pub device: usize,
    pub code: KernelLibrary,
}

/// The machine: its devices, and everything that was made on them.
pub struct EmulatedMachine {
    pub settings: EmulatorSettings,
    pub is_initialized: bool,
    pub devices: Vec<DeviceState>,
    pub blocks: MemoryBlocks,
    pub streams: BTreeMap<u64, EmulatedStream>,
    pub events: BTreeMap<u64, EmulatedEvent>,
    /// The captured work of each graph, with the device that it is of.
    pub graphs: BTreeMap<u64, (usize, Vec<StreamWork>)>,
    pub executables: BTreeMap<u64, (usize, Arc<[StreamWork]>)>,
    pub modules: BTreeMap<u64, LoadedModule>,
    pub functions: BTreeMap<u64, LoadedFunction>,
    began: Instant,
    next_handle: u64,
    launches: u64,
    draws: SplitMix64,
}

impl EmulatedMachine {
    pub fn new(settings: EmulatorSettings) -> Self {
        let device = |_| DeviceState { holders: 0, fault: None, peers: Vec::new() };
        let seed = match settings.order {
            ExecutionOrder::Random { seed } => seed,
            ExecutionOrder::Eager | ExecutionOrder::Lazy => 0,
        };
        Self {
            is_initialized: false,
            devices: (0..settings.devices).map(device).collect(),
            settings,
            blocks: MemoryBlocks::default(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            graphs: BTreeMap::new(),
            executables: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            began: Instant::now(),
            // No handle of one kind is one of another, and none is null.
            next_handle: 0x1000,
            launches: 0,
            draws: SplitMix64::seed_from_u64(seed),
        }
    }

    /// A handle that nothing has or had.
    pub fn fresh_handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    /// Nanoseconds since the machine began.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A number below `count`.
    fn draw(&mut self, count: u64) -> u64 {
        self.draws.next_u64() % count
    }

    /// Fails with the device's fault, if it has one.
    pub fn check(&self, device: usize) -> DriverResult<()> {
        match self.devices[device].fault {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Ends a device's context with all that was made in it and not destroyed.
    pub fn end_context(&mut self, device: usize) {
        self.streams.retain(|_, queue| queue.device != device);
        self.events.retain(|_, event| event.device != device);
        self.graphs.retain(|_, (of, _)| *of != device);
        self.executables.retain(|_, (of, _)| *of != device);
        self.modules.retain(|_, module| module.device != device);
        self.functions.retain(|_, function| function.device != device);
        for start in self.blocks.starts_of(device) {
            self.blocks.free(start);
        }
        self.devices[device] = DeviceState { holders: 0, fault: None, peers: Vec::new() };
    }
}
