//! The process `zbelastic`: command line, configuration, worker threads and run folder.

pub mod args;
pub mod bench;
pub mod commands;
pub mod config;
pub mod failure;
pub mod machine;
pub mod notice;
pub mod text;
pub mod train;
