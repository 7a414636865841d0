//! A join over real connections of this machine.
