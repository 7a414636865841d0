//! A node of a cluster: the process of a controller or of a worker, with its event loop, its threads
//! for the device and the disks, and its folder.
//!
//! It parses no command line and reads no configuration file: both are made values by `cli`.

pub mod cluster;
