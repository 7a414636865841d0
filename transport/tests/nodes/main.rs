//! Nodes that meet over real sockets of this machine.
//!
//! Every wait is for an event, with a deadline that only a broken program reaches.

mod accepting;
mod admin;
mod closing;
mod forged;
mod lanes;
mod meeting;
mod raw;
mod site;
