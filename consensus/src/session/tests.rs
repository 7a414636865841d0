//! A session between the controllers and its runtime.

mod commands;
mod harness;
mod joining;
mod pre_copy;
mod resending;
mod returning;
