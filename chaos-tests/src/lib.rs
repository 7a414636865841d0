//! Whole clusters in one thread, from one seed, under every fault there is a name for.
//!
//! [`case::LifeCase`] holds the inputs of a life; [`life::live`] lives it. The cluster runs the
//! very code of the product: controllers, sessions, worker runtimes and stage engines. Only their
//! surroundings are simulated: the network, the disks, the clocks, and the machines that die.

pub mod access;
pub mod args;
pub mod bug;
pub mod campaign;
pub mod case;
pub mod check;
pub mod command;
pub mod counts;
pub mod crash_points;
pub mod digest_executor;
pub mod digest_layer;
pub mod digest_model;
pub mod digest_reference;
pub mod disk;
pub mod exhaustive;
pub mod failure;
pub mod faults;
pub mod float_model;
mod float_source;
pub mod housekeeping;
#[cfg(feature = "mutants")]
pub mod hunt;
mod island_options;
mod islands;
pub mod life;
pub mod life_arithmetic;
pub mod log;
pub mod machine_traces;
pub mod markers;
pub mod network;
pub mod numeric_faults;
pub mod options;
pub mod planning;
pub mod queue;
pub mod quiet;
pub mod random;
pub mod reference;
pub mod reference_sums;
pub mod report;
pub mod shrink;
pub mod speed_drift;
mod stopwatch;
pub mod store;
mod ticks;
pub mod work_durations;
mod worker_threads;
pub mod world;
