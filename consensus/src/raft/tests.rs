//! A cluster in one thread, its disks and its network, and what must hold in it.

mod agreement;
mod cluster;
mod disks;
mod greetings;
mod guards;
mod membership;
mod records;
mod storms;
