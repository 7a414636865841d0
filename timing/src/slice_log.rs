//! The slices of a stage on their way to the trace and the timing.
//!
//! On a device with a queue of launches, the host's clock shows when a pass was launched. Its
//! slices get the device's times when they are removed, shifted by the offset between the two
//! clocks.

use zbelastic_trainer::model::Span;
use zbelastic_trainer::stage::StageExecutor;

use super::{MeasuredSlice, RunClock};

/// The slices of a stage since they were last removed.
#[derive(Debug, Default)]
pub struct SliceLog {
    slices: Vec<MeasuredSlice>,
    /// Which of them the device's spans belong to, in order; none for a span that is not drawn.
    of_spans: Vec<Option<usize>>,
    /// By how much the host's clock is ahead of the device's, once it is known.
    ahead_us: Option<f64>,
}

/// The slices that were removed from the log.
#[derive(Debug, Default)]
pub struct TakenSlices {
    /// Slices in the order in which the engine reported them.
    pub slices: Vec<MeasuredSlice>,
    /// Time of all slices on a device that has a clock of its own.
    pub device_us: Option<f64>,
}

impl SliceLog {
    /// How many slices there are.
    pub const fn count(&self) -> usize {
        self.slices.len()
    }

    /// Adds a slice, if its operation is drawn, by the host's clock for now.
    pub fn push<W: StageExecutor>(&mut self, executor: &W, slice: Option<MeasuredSlice>) {
        let noted = executor.spans_recorded();
        if noted < self.of_spans.len() {
            // Another executor has replaced the one that recorded these.
            self.of_spans.clear();
        }
        if noted > self.of_spans.len() {
            self.of_spans.push(slice.map(|_| self.slices.len()));
        }
        self.slices.extend(slice);
    }

    /// Removes all of it, with the spans that `executor` recorded.
    pub fn take<W: StageExecutor>(
        &mut self,
        executor: &W,
        spans: &[Span],
        clock: &RunClock,
    ) -> TakenSlices {
        let of_spans = std::mem::take(&mut self.of_spans);
        let mut slices = std::mem::take(&mut self.slices);
        if spans.is_empty() {
            return TakenSlices { slices, device_us: None };
        }
        if self.ahead_us.is_none() {
            self.ahead_us = executor.device_now_us().map(|device_us| clock.now_us() - device_us);
        }
        for (index, Span { start_us, end_us }) in of_spans.iter().zip(spans) {
            if let (Some(index), Some(ahead_us)) = (*index, self.ahead_us) {
                slices[index].start_us = start_us + ahead_us;
                slices[index].end_us = end_us + ahead_us;
            }
        }
        let device_us = spans.iter().map(|span| span.end_us - span.start_us).sum();
        TakenSlices { slices, device_us: Some(device_us) }
    }
}
