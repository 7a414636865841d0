//! The commands, one file each. Each reads the typed flags and writes the text that a person or a
//! script reads to `out`.

#[cfg(feature = "chaos")]
pub mod chaos;
pub mod ckpt;
mod clock;
pub mod cluster;
pub mod config;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod events;
pub mod export;
pub mod generate;
pub mod job;
pub mod leave;
pub mod mirror;
pub(crate) mod mirror_failure;
pub mod node;
pub mod plan;
mod reach;
pub mod recover;
pub mod run;
pub mod runs;
mod saved_model;
pub mod schedule;
mod select;
pub mod shell;
pub mod status;
pub mod stop;
mod table;
pub mod token;
pub mod tokenizer;
pub mod top;
pub mod ui;
