//! One stage of the pipeline, run from its program.
//!
//! [`StageEngine`] is a state machine: [`StageEngine::handle`] takes what arrived,
//! [`StageEngine::run_next`] runs the next operation or returns what it waits for, and
//! [`StageEngine::poll_output`] yields what should be sent. It owns a device and its part of the
//! model; threads, sockets and clocks are its owner's.

mod backend_executor;
mod chunk_workspace;
mod commits;
mod engine;
mod evaluation;
mod events;
mod executor;
mod frame;
mod gathering;
mod inbox;
mod initial_weights;
mod injection;
mod lane_sums;
mod offload_target;
mod outer;
mod partial;
mod pass_pool;
mod phase;
mod reductions;
mod runner;
mod slots;
mod stash_store;
mod updates;
mod validation;

pub(crate) use slots::SlotPool;

pub use backend_executor::BackendExecutor;
pub use engine::StageEngine;
pub use evaluation::{HELD_OUT_MAX, evaluates_at};
pub use events::{
    EngineActivity, EngineProgress, Event, EventRefusal, LayerGradient, Output, StageSetup,
    WaitReason,
};
pub use executor::{
    GradientExecutor, OperationClock, OuterExecutor, PassExecutor, SealedState, StageExecutor,
    UpdateExecutor, UpdateRequest,
};
pub use frame::{Frame, PassMode};
pub use inbox::BoundaryFrameRefusal;
pub use initial_weights::InitialWeights;
pub use injection::{Corruption, Injection, InjectionParseError};
pub use partial::{
    PARTIALS_PER_CHUNK, PartialExchange, PartialGradient, PartialLength, PartialRefusal,
};
pub use stash_store::{ByteBudget, MemoryStashStore, StashStore, StashStoreError};
