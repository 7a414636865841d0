//! A leader's duties: what it receives, what it decides, and what it does not decide.

mod ahead;
mod bench;
mod blame;
mod drift;
mod evidence;
mod gone;
mod hands;
mod last;
mod leaving;
mod planning;
mod restore;
mod sealing;
mod seats;
mod timed;
mod watch;
