//! The clock of a device that enqueues operations and does them later.

/// Timestamps by a device's own clock. Every default is of a device whose operations are done when
/// they return, so that the host's clock times them.
pub trait DeviceClock {
    /// Whether operations are enqueued here and done later: then only [`Self::record_timestamp`]
    /// knows when.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Records a timestamp, by the device's own clock, once everything enqueued before is done.
    /// False if it was not recorded: too many wait to be read, or operations are done when they
    /// return.
    fn record_timestamp(&self) -> bool {
        false
    }

    /// The timestamps recorded since the last call, in order, in microseconds. Waits for them;
    /// fewer than were recorded if the device failed.
    fn read_timestamps(&self) -> Vec<f64> {
        Vec::new()
    }
}
