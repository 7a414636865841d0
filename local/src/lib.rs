//! A run in one process: a thread for each stage, and a coordinator that decides.
//!
//! [`cluster`] is a run of steps, [`asynchronous`] one without steps. Neither reads a configuration
//! nor writes a file: each event is passed to an observer.

pub mod asynchronous;
pub mod cluster;
pub mod coordinator;
pub mod device_factory;
pub mod executor_factory;
pub mod interrupt;
pub mod job;
pub mod messages;
pub mod progress_event;
mod worker;
