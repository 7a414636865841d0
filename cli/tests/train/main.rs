//! `zbelastic train` from the command line to the run folder, as a person and a script meet it.

mod asynchronous;
mod both_ways;
#[path = "../common/mod.rs"]
mod common;
mod digests;
#[cfg(target_os = "linux")]
mod drift;
#[cfg(unix)]
mod endings;
mod events;
mod folder;
mod guard;
mod islands;
mod memory;
#[cfg(unix)]
#[path = "../common/mirrored.rs"]
mod mirrored;
mod observed;
mod pace;
mod reading;
mod refusals;
mod replicas;
mod slices;
mod stores;
#[cfg(unix)]
mod taken_away;
mod text_folder;
#[expect(dead_code, reason = "tests of recipes look for programs on the path")]
#[path = "../common/tools.rs"]
mod tools;
mod trace;
