//! A seat between the controllers and its host.

mod commands;
mod harness;
mod joining;
mod pre_copy;
mod resending;
