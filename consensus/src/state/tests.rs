//! Every entry against the state it meets: what fits, what does not, and what each changes.

mod access;
mod checkpoints;
mod classes;
mod job;
mod malformed;
mod members;
mod plans;
mod rewind;
mod rotation;
mod runs;
mod seals;
