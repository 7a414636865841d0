//! The counters while they count. Each is a number of its own: a reading of all is no instant.

use std::sync::atomic::{AtomicU64, Ordering};

use super::counters::{ControlCounters, Counters, DoorCounters, LaneCounters, RequestCounters};
use crate::event::Road;

/// One number that only grows, or one that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LaneTally {
    sent: Tally,
    received: Tally,
    bytes_sent: [Tally; 2],
    bytes_received: [Tally; 2],
    pub(crate) dropped: Tally,
}

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) control: LaneTally,
    pub(crate) control_queue_full: Tally,
    pub(crate) control_no_road: Tally,
    pub(crate) control_events_full: Tally,
    pub(crate) control_not_sendable: Tally,
    pub(crate) control_unknown_kind: Tally,
    pub(crate) frames: LaneTally,
    pub(crate) frames_refused: Tally,
    pub(crate) bulk: LaneTally,
    pub(crate) requests_asked: Tally,
    pub(crate) requests_taken: Tally,
    pub(crate) requests_busy: Tally,
    pub(crate) requests_refused: Tally,
    pub(crate) door_pending: Gauge,
    pub(crate) door_retried: Tally,
    pub(crate) door_replaced: Tally,
    pub(crate) door_ignored: Tally,
    pub(crate) door_ignored_of_address: Tally,
    pub(crate) door_failed: Tally,
    pub(crate) door_late: Tally,
    pub(crate) door_refused: Tally,
    pub(crate) violations: Tally,
    pub(crate) open: Gauge,
}

/// How many of something there are, and the most there ever were.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    now: AtomicU64,
    highest: AtomicU64,
}

/// One of what a gauge counts, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Gauged<'a>(&'a Gauge);

impl Gauge {
    pub(crate) fn hold(&self) -> Gauged<'_> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.highest.fetch_max(now, Ordering::Relaxed);
        Gauged(self)
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

impl Drop for Gauged<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

const fn index(road: Road) -> usize {
    match road {
        Road::Quic => 0,
        Road::SameHost => 1,
    }
}

impl LaneTally {
    pub(crate) fn sent(&self, road: Road, units: u64, bytes: u64) {
        self.sent.add(units);
        self.bytes_sent[index(road)].add(bytes);
    }

    pub(crate) fn received(&self, road: Road, units: u64, bytes: u64) {
        self.received.add(units);
        self.bytes_received[index(road)].add(bytes);
    }

    fn read(&self) -> LaneCounters {
        LaneCounters {
            sent: self.sent.read(),
            received: self.received.read(),
            quic_bytes_sent: self.bytes_sent[index(Road::Quic)].read(),
            quic_bytes_received: self.bytes_received[index(Road::Quic)].read(),
            same_host_bytes_sent: self.bytes_sent[index(Road::SameHost)].read(),
            same_host_bytes_received: self.bytes_received[index(Road::SameHost)].read(),
            dropped: self.dropped.read(),
        }
    }
}

impl Tallies {
    pub(crate) fn read(&self) -> Counters {
        Counters {
            control: ControlCounters {
                lane: self.control.read(),
                dropped_queue_full: self.control_queue_full.read(),
                dropped_no_road: self.control_no_road.read(),
                dropped_events_full: self.control_events_full.read(),
                dropped_not_sendable: self.control_not_sendable.read(),
                dropped_unknown_kind: self.control_unknown_kind.read(),
            },
            frames: self.frames.read(),
            frames_refused: self.frames_refused.read(),
            bulk: self.bulk.read(),
            requests: RequestCounters {
                asked: self.requests_asked.read(),
                taken: self.requests_taken.read(),
                refused_busy: self.requests_busy.read(),
                refused: self.requests_refused.read(),
            },
            door: DoorCounters {
                pending: self.door_pending.now(),
                pending_highest: self.door_pending.highest.load(Ordering::Relaxed),
                retried: self.door_retried.read(),
                replaced: self.door_replaced.read(),
                ignored: self.door_ignored.read(),
                ignored_of_address: self.door_ignored_of_address.read(),
                failed: self.door_failed.read(),
                late: self.door_late.read(),
                refused: self.door_refused.read(),
                violations: self.violations.read(),
                open: self.open.now(),
            },
        }
    }
}
