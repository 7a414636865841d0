//! Wrong uses of the real binary by users and strangers, each with the answer it gets.
//! `docs/security.md` lists them.

#[path = "../common/mod.rs"]
mod common;

mod folders;
mod orders;
mod people;
mod port;
mod renewals;
mod rotation;
mod runs;
mod signals;
mod site;
mod tokens;
mod words;
mod zones;
