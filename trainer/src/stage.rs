//! One stage of the pipeline, run from its program.
//!
//! [`StageEngine`] is a state machine: [`StageEngine::handle`] takes what arrived,
//! [`StageEngine::run_next`] runs the next operation or returns what it waits for, and
//! [`StageEngine::poll_output`] yields what should be sent. It owns a device and its part of the
//! model; threads, sockets and clocks are its owner's.

mod chunk_bench;
mod elsewhere;
mod engine;
mod evaluation;
mod frame;
mod inbox;
mod injection;
mod partial;
mod pass_pool;
mod passes;
mod reductions;
mod running;
mod slots;
mod store;
mod updates;
mod workbench;

pub(crate) use slots::Slots;

pub use engine::{
    Activity, Event, EventRefusal, InitialWeights, Output, Progress, StageEngine, StageSetup, Wait,
};
pub use evaluation::HELD_OUT_MAX;
pub use frame::{Frame, Lap};
pub use inbox::FrameRefusal;
pub use injection::{Corruption, Injection, InjectionParseError};
pub use partial::{PARTIALS_PER_CHUNK, Partial, PartialLength, PartialRefusal};
pub use passes::Bench;
pub use store::{MemoryStore, Room, SecondStore, StoreError};
pub use workbench::{UpdateOrder, Workbench};
