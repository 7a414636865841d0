//! `bench`: speed of this machine on the models that results are compared on.
//!
//! Machines are shared and noisy, so everything that is compared is measured in turns within one
//! run, and of each the best round counts: a disturbance of a round makes it slower, never faster.

pub mod args;
mod bubble;
mod case;
mod cluster;
mod gemm;
mod gpu;
mod lanes;
mod memory;
mod ops;
mod optimizer;
mod paced;
mod peak;
mod pipelined;
mod report;
mod serial;
mod step;
mod train;

use std::io::Write;

use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use crate::args::BenchCommand;

/// Runs a `bench` command.
///
/// # Errors
/// If memory or threads cannot be had, or `out` cannot be written.
pub fn run(command: &BenchCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        BenchCommand::Train(args) => train::run(args, out),
        BenchCommand::Memory(args) => memory::run(args, out),
        BenchCommand::Gemm(args) => gemm::run(args, out),
        BenchCommand::Ops(args) => ops::run(args, out),
        BenchCommand::Step(args) => step::run(args, out),
        BenchCommand::Lanes(args) => lanes::run(args, out),
        BenchCommand::Bubble(args) => bubble::run(args, out),
        BenchCommand::Cluster(args) => cluster::run(args, out),
        BenchCommand::Gpu(args) => gpu::run(args, out),
    }
}

/// Memory or threads that a benchmark needs and does not get.
fn out_of_resource(error: &dyn std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, error.to_string())
}
