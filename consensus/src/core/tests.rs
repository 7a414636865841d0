//! A controller alone, and three of them with workers, in one thread.

mod commands;
mod entries;
mod fake_runtime;
mod formats;
mod in_process;
mod logged;
mod refusals;
mod repeat;
mod rotation;
mod run;
mod seals;
mod snapshots;
