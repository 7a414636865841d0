//! `doctor`: whether this machine can be a node, and what to do where it cannot.
