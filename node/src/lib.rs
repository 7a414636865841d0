//! The process `zbelastic`: command line, configuration, worker threads and run folder.

pub mod api;
pub mod args;
pub mod bench;
pub mod checked_json;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod data_folder;
pub mod device;
pub mod failure;
pub mod machine;
pub mod panics;
pub mod second_store;
pub mod terminal;
pub mod text;
pub mod train;
pub mod whole_file;
