//! Ticks: the clock of the pure cores, in real time.

use std::time::Duration;

use zbelastic_consensus::duty::DutyTiming;
use zbelastic_consensus::session::SessionTiming;
pub use zbelastic_consensus::tick::TICK;

/// A worker's heartbeat: more than ten in the default silence after which it is held for lost.
pub const SESSION_TIMING: SessionTiming = SessionTiming { beat_ticks: 6, resend_ticks: 10 };
/// The time from one heartbeat to the next, in milliseconds.
pub const HEARTBEAT_MS: u64 = SESSION_TIMING.beat_ticks as u64 * TICK.as_millis() as u64;
/// Heartbeats that must fit into the silence that a configuration allows: one is late when a
/// machine is busy, a second when a datagram is lost with it.
pub const HEARTBEATS_LEAST: u64 = 4;
/// Without a heartbeat for so long a member is lost while there is no job. A job's default is the
/// same: a pause of a third of a second changes nothing.
const LOST_AFTER: Duration = Duration::from_millis(700);

/// Ticks to an election of the controller with the lowest number, and between two of them.
const ELECTION_TICKS_MIN: u32 = 20;
const ELECTION_TICKS_APART: u32 = 5;
/// Controllers that get numbers of their own before they repeat: more than ever vote.
const ELECTION_NUMBERS: u64 = 8;

/// Without any progress for so long, work that makes no progress is given up. Progress comes with
/// each heartbeat, however long work lasts: this is more than three hundred of them.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an inventory waits for workers that did not answer though it has a source of each
/// layer: a little more than an idle worker needs. Nothing is lost when it ends.
const INVENTORY_TIMEOUT: Duration = Duration::from_millis(400);

/// How long a leader waits for what. A job's configuration sets how long a member of its cluster
/// may be silent, and how long more members are waited for.
#[must_use]
pub fn duty_timing() -> DutyTiming {
    DutyTiming {
        lost_after_ticks: ticks_of(LOST_AFTER),
        progress_ticks: ticks_of(PROGRESS_TIMEOUT),
        inventory_ticks: ticks_of(INVENTORY_TIMEOUT),
    }
}

/// Ticks to an election of a controller: another number for each of the controllers that vote
/// together, so that two do not compete again and again.
#[must_use]
pub fn election_ticks(node: u64) -> u32 {
    ELECTION_TICKS_MIN + ELECTION_TICKS_APART * (node % ELECTION_NUMBERS) as u32
}

/// A duration in ticks, at least one.
#[must_use]
pub fn ticks_of(duration: Duration) -> u32 {
    ticks_of_seconds(duration.as_secs_f64())
}

/// Seconds in ticks, at least one.
#[must_use]
pub fn ticks_of_seconds(seconds: f64) -> u32 {
    ((seconds / TICK.as_secs_f64()).ceil() as u32).max(1)
}

/// A time in thousandths of a tick.
#[must_use]
pub fn milliticks(time: Duration) -> u32 {
    u32::try_from(time.as_micros() * 1000 / TICK.as_micros()).unwrap_or(u32::MAX)
}
