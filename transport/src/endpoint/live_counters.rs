//! The counters while they count. Each is a number of its own: a reading of all is no instant.

use std::sync::atomic::{AtomicU64, Ordering};

use super::counters::{
    AcceptCounters, ControlCounters, LaneCounters, RequestCounters, TransportCounters,
};
use crate::event::TransportPath;

/// One number that only grows, or one that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct AtomicCounter(AtomicU64);

impl AtomicCounter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LiveLaneCounters {
    sent: AtomicCounter,
    received: AtomicCounter,
    bytes_sent: [AtomicCounter; 2],
    bytes_received: [AtomicCounter; 2],
    pub(crate) dropped: AtomicCounter,
}

#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    pub(crate) control: LiveLaneCounters,
    pub(crate) control_queue_full: AtomicCounter,
    pub(crate) control_no_path: AtomicCounter,
    pub(crate) control_events_full: AtomicCounter,
    pub(crate) control_not_sendable: AtomicCounter,
    pub(crate) control_unknown_kind: AtomicCounter,
    pub(crate) frames: LiveLaneCounters,
    pub(crate) frames_refused: AtomicCounter,
    pub(crate) bulk: LiveLaneCounters,
    pub(crate) requests_sent: AtomicCounter,
    pub(crate) requests_accepted: AtomicCounter,
    pub(crate) requests_busy: AtomicCounter,
    pub(crate) requests_refused: AtomicCounter,
    pub(crate) accept_pending: AtomicGauge,
    pub(crate) accept_retried: AtomicCounter,
    pub(crate) accept_replaced: AtomicCounter,
    pub(crate) accept_ignored: AtomicCounter,
    pub(crate) accept_ignored_of_address: AtomicCounter,
    pub(crate) accept_failed: AtomicCounter,
    pub(crate) accept_late: AtomicCounter,
    pub(crate) accept_refused: AtomicCounter,
    pub(crate) violations: AtomicCounter,
    pub(crate) open: AtomicGauge,
}

/// How many of something there are, and the most there ever were.
#[derive(Debug, Default)]
pub(crate) struct AtomicGauge {
    now: AtomicU64,
    highest: AtomicU64,
}

/// One unit that a gauge counts, for as long as it is held.
#[derive(Debug)]
pub(crate) struct GaugeGuard<'a>(&'a AtomicGauge);

impl AtomicGauge {
    pub(crate) fn hold(&self) -> GaugeGuard<'_> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.highest.fetch_max(now, Ordering::Relaxed);
        GaugeGuard(self)
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

const fn path_index(path: TransportPath) -> usize {
    match path {
        TransportPath::Quic => 0,
        TransportPath::SameHost => 1,
    }
}

impl LiveLaneCounters {
    pub(crate) fn sent(&self, path: TransportPath, units: u64, bytes: u64) {
        self.sent.add(units);
        self.bytes_sent[path_index(path)].add(bytes);
    }

    pub(crate) fn received(&self, path: TransportPath, units: u64, bytes: u64) {
        self.received.add(units);
        self.bytes_received[path_index(path)].add(bytes);
    }

    fn read(&self) -> LaneCounters {
        LaneCounters {
            sent: self.sent.read(),
            received: self.received.read(),
            quic_bytes_sent: self.bytes_sent[path_index(TransportPath::Quic)].read(),
            quic_bytes_received: self.bytes_received[path_index(TransportPath::Quic)].read(),
            same_host_bytes_sent: self.bytes_sent[path_index(TransportPath::SameHost)].read(),
            same_host_bytes_received: self.bytes_received[path_index(TransportPath::SameHost)]
                .read(),
            dropped: self.dropped.read(),
        }
    }
}

impl LiveCounters {
    pub(crate) fn read(&self) -> TransportCounters {
        TransportCounters {
            control: ControlCounters {
                lane: self.control.read(),
                dropped_queue_full: self.control_queue_full.read(),
                dropped_no_path: self.control_no_path.read(),
                dropped_events_full: self.control_events_full.read(),
                dropped_not_sendable: self.control_not_sendable.read(),
                dropped_unknown_kind: self.control_unknown_kind.read(),
            },
            frames: self.frames.read(),
            frames_refused: self.frames_refused.read(),
            bulk: self.bulk.read(),
            requests: RequestCounters {
                sent: self.requests_sent.read(),
                accepted: self.requests_accepted.read(),
                refused_busy: self.requests_busy.read(),
                refused: self.requests_refused.read(),
            },
            accept: AcceptCounters {
                pending: self.accept_pending.now(),
                pending_highest: self.accept_pending.highest.load(Ordering::Relaxed),
                retried: self.accept_retried.read(),
                replaced: self.accept_replaced.read(),
                ignored: self.accept_ignored.read(),
                ignored_of_address: self.accept_ignored_of_address.read(),
                failed: self.accept_failed.read(),
                late: self.accept_late.read(),
                refused: self.accept_refused.read(),
                violations: self.violations.read(),
                open: self.open.now(),
            },
        }
    }
}
