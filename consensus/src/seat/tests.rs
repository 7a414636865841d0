//! A seat between the controllers and its host.

mod ahead;
mod bench;
mod joining;
mod orders;
mod telling;
