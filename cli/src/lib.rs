//! The command line of `zbelastic`: what was typed, what each command does and prints, a run on this
//! machine, and how a folder becomes a node's.
//!
//! Cores and processes lie below: this package parses, calls them, and writes for persons and
//! scripts what came of it.

pub mod args;
mod command_connection;
pub mod commands;
mod corpus;
pub mod membership;
pub mod panics;
mod progress;
mod terminal;
mod token_source;
mod tokenizer_encoder;
pub mod train;
mod weights;

pub use command_connection::exchange;
