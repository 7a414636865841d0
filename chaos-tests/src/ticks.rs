//! The ticks of a life, and how many of them its leaders wait.

/// A tick of a clock that is right, in microseconds.
pub const TICK_US: u64 = 50_000;
/// Ticks without a heartbeat until a leader of a life declares a member lost.
pub const LOST_AFTER_TICKS: u32 = 24;
/// Ticks that it waits for more members when one joins.
pub const SETTLE_TICKS: u32 = 8;
