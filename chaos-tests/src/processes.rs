//! Clusters of real processes, and what is done to them.
//!
//! The rest of this package lives clusters in virtual time. This module starts the binary
//! `zbelastic` many times on this machine, kills, stops and cuts off what it started, and looks at
//! what a user could look at: the event files of the nodes, `status --json` and exit codes. It is a
//! shell: it has clocks, threads, sockets, files and processes, and nothing of the simulator reads
//! any of them.
//!
//! It knows the binary by its command line only ([`contract`]), so it names neither `node` nor
//! `transport`.

#![expect(
    clippy::disallowed_methods,
    reason = "processes, sockets and waits are what this module is about; no simulated life uses it"
)]

pub mod account;
pub mod campaign;
pub mod check;
pub mod command;
pub mod contract;
pub mod demo;
pub mod events;
pub mod faults;
pub mod folder;
pub mod footprint;
pub mod goal;
pub mod group;
pub mod machine;
pub mod measure;
pub mod namespaces;
pub mod picture;
pub mod ports;
pub mod proxy;
pub mod replay;
pub mod resident;
pub mod small_disk;
pub mod strike;
pub mod system;
pub mod times;
pub mod undisturbed;
pub mod watch;
pub mod weather;
pub mod wires;
