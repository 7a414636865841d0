//! A controller alone, and three of them with workers, in one thread.

mod entries;
mod formats;
mod host;
mod logged;
mod orders;
mod pump;
mod refusals;
mod repeat;
mod rotation;
mod run;
mod seals;
mod snapshots;
