//! A leader's duties: what it receives, what it decides, and what it does not decide.

mod blame;
mod checkpoint_timer;
mod drift;
mod elections;
mod ephemeral;
mod evidence;
mod harness;
mod heartbeats;
mod last;
mod leaving;
mod planning;
mod pre_copy;
mod reroute;
mod restore;
mod sealing;
mod seats;
mod unread;
