//! Clusters of real processes, and the faults that are injected into them.
//!
//! `chaos-tests` lives clusters in virtual time. This package starts the binary `zbelastic` many
//! times on this machine, kills, stops and cuts off the processes that it started, and looks at the
//! outputs that a user could look at: the event files of the nodes, `status --json` and exit codes.
//! It is a shell: it has clocks, threads, sockets, files and processes, and nothing of the
//! simulator reads any of them.
//!
//! It knows the binary by its command line only ([`contract`]), so it names neither `node` nor
//! `transport`.

pub mod args;
pub mod campaign;
pub mod campaign_report;
pub mod check;
pub mod cluster_observation;
pub mod command;
pub mod contract;
pub mod demo;
mod disk_damage;
pub mod durations;
pub mod events;
pub mod fault_injector;
pub mod faults;
pub mod footprint;
pub mod goal;
pub mod link_conditions;
pub mod live_page;
pub mod local_cluster;
pub mod machine;
pub mod measure;
pub mod namespaces;
pub mod ports;
pub mod process_network;
pub mod proxy;
pub mod replay;
pub mod resident;
pub mod run_monitor;
pub mod small_disk;
pub mod soak;
pub mod system;
pub mod undisturbed;
