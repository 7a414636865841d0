//! What becomes of a step when something fails at a named moment: one test for each way.
//!
//! The numbers in the names count the ways to fail which the protocol has an answer to. A test is
//! written in the words of [`play`]: run until something has happened, hold something back, end a
//! process, and state what must have come of it. The cluster is the one of the product; only the
//! order of events is written down here instead of drawn.

mod changes;
mod leaders;
mod numbers;
mod planted;
mod play;
mod vocabulary;
mod workers;
