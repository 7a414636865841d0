//! The command line of `zbelastic`: the typed flags, the work and the output of each command, a run
//! on this machine, and how a folder becomes a node's.
//!
//! Cores and processes lie below: this package parses, calls them, and writes for persons and
//! scripts the result.

pub mod args;
mod blob;
mod command_connection;
pub mod commands;
mod controller_mirror;
mod controller_page;
mod corpus;
mod data_failure;
mod event_history;
mod event_poller;
mod live_page;
pub mod membership;
mod named_thread;
pub mod panics;
mod progress;
mod remote_model;
mod remote_sources;
mod run_files;
mod run_tokenizer;
mod side_process;
mod span_exporter;
mod step_line;
mod store_maker;
mod terminal;
mod token_source;
mod tokenizer_encoder;
pub mod train;
mod weights;

pub use command_connection::exchange;
