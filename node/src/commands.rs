//! The commands, one file each. Each takes what was typed and writes what a person or a script reads
//! to `out`.

pub mod chaos;
pub mod config;
pub mod doctor;
pub mod schedule;
