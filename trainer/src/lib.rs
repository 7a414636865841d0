//! Training: a transformer, its data and its optimizer, run from a program.
//!
//! [`stage::StageEngine`] runs one stage: it takes what arrived, executes the next operation of its
//! program on a [`zbelastic_kernels::Backend`], and returns what should be sent. [`reference`] is
//! the same training in one loop. The two agree to the last bit, whatever the number of stages,
//! the schedule, the window, the threads or the rollbacks.
//!
//! This package knows no socket, no file and no clock.

pub mod asynchronous;
pub mod data;
pub mod decoder;
pub mod digest;
pub mod elastic;
pub mod evaluator;
pub mod hf;
mod layer_image;
pub mod model;
pub mod optimizer;
pub mod outer;
pub mod plan;
pub mod profile;
pub mod random;
pub mod reference;
pub mod runtime;
pub mod sample;
pub mod stage;
