//! A join over real connections of this machine, and its messages as bytes.

mod channels;
mod granted;
mod messages;
mod refused;
mod stage;
