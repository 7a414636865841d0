//! Times of the layers of a stage, pass by pass, by a clock of the stage's owner.
//!
//! Passes call the timer where one layer ends and the next begins, and the time between two such
//! calls is the layer's. Nothing is computed otherwise for it, and without a clock nothing is
//! read.
//!
//! A device that runs enqueued work later records timestamps by its own clock, and is waited for
//! when they are read. A timestamp is a little work for it, so only some turns are timed there.

use std::cell::{Cell, RefCell};

use serde::{Deserialize, Serialize};

use zbelastic_kernels::Backend;

use super::config::LayerKind;

/// Layers that do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerClass {
    /// Token and position embedding.
    Embed,
    /// Attention halves of blocks.
    Attention,
    /// MLP halves of blocks.
    Mlp,
    /// Final normalisation, output head and loss.
    Head,
}

impl LayerClass {
    /// All of them, in the order of [`Self::index`].
    pub const ALL: [Self; 4] = [Self::Embed, Self::Attention, Self::Mlp, Self::Head];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Which one a layer belongs to.
    #[must_use]
    pub const fn of(kind: LayerKind) -> Self {
        match kind {
            LayerKind::Embed => Self::Embed,
            LayerKind::Attention { .. } => Self::Attention,
            LayerKind::Mlp { .. } => Self::Mlp,
            LayerKind::Head => Self::Head,
        }
    }

    /// Its place in tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name of the class in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Head => "head",
        }
    }
}

/// An operation on a layer: a pass, or half of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOp {
    /// The forward pass (F).
    Forward,
    /// The backward pass to the layer's input (B).
    InputGradient,
    /// W, without the part that WE may run.
    WeightGradient,
    /// The part that WE may run: W of the head's matrix.
    EarlyWeightGradient,
    /// The recomputation of the forward pass (R).
    Recompute,
    /// The half of an update that computes the candidate.
    Candidate,
    /// The half that makes it the state.
    Commit,
}

impl LayerOp {
    /// How many there are.
    pub const COUNT: usize = 7;
}

/// How often something was run, and the time of all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeTotal {
    /// How often it was done.
    pub count: u32,
    /// All of it, in microseconds.
    pub us: f64,
}

impl TimeTotal {
    /// The mean time of one run, if there was one.
    #[must_use]
    pub fn mean_us(self) -> Option<f64> {
        (self.count > 0).then(|| self.us / f64::from(self.count))
    }
}

/// The times of a stage's layers since the last [`LayerTimer::take`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerTimes([[TimeTotal; LayerOp::COUNT]; LayerClass::COUNT]);

/// Nothing lasts so many microseconds, three thousand years, and no clock shows so few but none at
/// all. Results computed from those in between are finite.
const US_MAX: f64 = 1e17;
const US_MIN: f64 = 1e-9;

impl LayerTimes {
    /// The time that was spent on a part of the layers of a class.
    #[must_use]
    pub const fn spent(&self, class: LayerClass, part: LayerOp) -> TimeTotal {
        self.0[class.index()][part as usize]
    }

    /// Adds one layer's part.
    pub fn add(&mut self, class: LayerClass, part: LayerOp, us: f64) {
        let spent = &mut self.0[class.index()][part as usize];
        spent.count = spent.count.saturating_add(1);
        spent.us += us;
    }

    /// Whether its times can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.0.iter().flatten().all(|TimeTotal { count, us }| match *us {
            0.0 => true,
            us => *count > 0 && (US_MIN..=US_MAX).contains(&us),
        })
    }
}

/// Returns microseconds since some moment, and never goes back.
pub type LayerClock = Box<dyn Fn() -> f64 + Send>;

/// From when to when something was done, by the device's own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it began, in microseconds.
    pub start_us: f64,
    /// When it ended, in microseconds.
    pub end_us: f64,
}

/// The times that were measured since the last [`LayerTimer::take`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimings {
    /// Times of layers; none without a clock, and of a device that is behind if this turn was not
    /// timed.
    pub layers: Option<LayerTimes>,
    /// Operations of a device that is behind.
    pub spans: Vec<Span>,
}

/// The event that a device has recorded a timestamp for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TimerMark {
    /// An operation begins; its operands are there.
    Begin,
    /// A layer's part has ended.
    Layer(LayerClass, LayerOp),
    /// An operation has ended.
    End,
}

/// Of a device that is behind: turns at the beginning in which layers are timed, and after them one
/// of so many.
const FIRST_TURNS: u32 = 8;
const TURNS_BETWEEN: u32 = 16;

/// Times the layers of a stage, and its operations where the host's clock shows nothing of them.
#[derive(Default)]
pub struct LayerTimer {
    clock: Option<LayerClock>,
    border_us: Cell<f64>,
    times: RefCell<LayerTimes>,
    /// Events that a device has recorded timestamps for, in order.
    marks: RefCell<Vec<TimerMark>>,
    /// Whether an operation has begun there.
    is_open: Cell<bool>,
    /// Those that have ended.
    spans: Cell<usize>,
    /// Turns that are over.
    turns: Cell<u32>,
}

impl LayerTimer {
    /// A timer by this clock.
    #[must_use]
    pub fn new(clock: LayerClock) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// A layer's part begins. The first one of an operation begins it: its operands have come.
    pub fn begin<B: Backend>(&self, backend: &B) {
        let Some(clock) = &self.clock else { return };
        if !backend.is_asynchronous() {
            self.border_us.set(clock());
        } else if !self.is_open.get() {
            self.is_open.set(self.mark(backend, TimerMark::Begin));
        }
    }

    /// It is done, and the next one begins.
    pub fn pass<B: Backend>(&self, backend: &B, kind: LayerKind, part: LayerOp) {
        let (Some(clock), class) = (&self.clock, LayerClass::of(kind)) else { return };
        if backend.is_asynchronous() {
            if self.is_timed() {
                self.mark(backend, TimerMark::Layer(class, part));
            }
            return;
        }
        let now_us = clock();
        let took_us = now_us - self.border_us.replace(now_us);
        self.times.borrow_mut().add(class, part, took_us);
    }

    /// An operation has ended.
    pub fn end<B: Backend>(&self, backend: &B) {
        if self.is_open.replace(false) && self.mark(backend, TimerMark::End) {
            self.spans.set(self.spans.get() + 1);
        }
    }

    /// Operations that ended since [`Self::take`], on a device that is behind.
    pub fn spans_recorded(&self) -> usize {
        self.spans.get()
    }

    /// The times that were measured since the last call, of which there is one a turn.
    pub fn take<B: Backend>(&self, backend: &B) -> StageTimings {
        if self.clock.is_none() {
            return StageTimings::default();
        }
        if !backend.is_asynchronous() {
            return StageTimings { layers: Some(self.times.take()), spans: Vec::new() };
        }
        let is_timed = self.is_timed();
        self.turns.set(self.turns.get().wrapping_add(1));
        let marks = self.marks.take();
        let timestamps = backend.read_timestamps();
        self.spans.set(0);
        self.is_open.set(false);
        // Of a device that failed there are fewer, and nothing to be learned.
        if marks.len() != timestamps.len() {
            return StageTimings::default();
        }
        let layers = is_timed.then(|| layers_between(&marks, &timestamps));
        StageTimings { layers, spans: spans_between(&marks, &timestamps) }
    }

    /// Whether layers of this turn are timed on a device that is behind: then each part of theirs
    /// is to be done alone.
    pub fn is_timed(&self) -> bool {
        let turn = self.turns.get();
        self.clock.is_some() && (turn < FIRST_TURNS || turn.is_multiple_of(TURNS_BETWEEN))
    }

    /// Records a timestamp, and returns whether the device did.
    fn mark<B: Backend>(&self, backend: &B, mark: TimerMark) -> bool {
        let is_recorded = backend.record_timestamp();
        if is_recorded {
            self.marks.borrow_mut().push(mark);
        }
        is_recorded
    }
}

/// The time between each timestamp and the one before it, where a layer's part ended.
fn layers_between(marks: &[TimerMark], timestamps: &[f64]) -> LayerTimes {
    let mut times = LayerTimes::default();
    for (mark, pair) in marks.iter().skip(1).zip(timestamps.windows(2)) {
        match mark {
            TimerMark::Layer(class, part) => times.add(*class, *part, pair[1] - pair[0]),
            TimerMark::Begin | TimerMark::End => {}
        }
    }
    times
}

/// From each begin to the end behind it.
fn spans_between(marks: &[TimerMark], timestamps: &[f64]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut start_us = f64::NAN;
    for (mark, timestamp) in marks.iter().zip(timestamps) {
        match mark {
            TimerMark::Begin => start_us = *timestamp,
            TimerMark::Layer(..) => {}
            TimerMark::End => spans.push(Span { start_us, end_us: *timestamp }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use zbelastic_kernels::CpuBackend;

    use super::{LayerClass, LayerKind, LayerOp, LayerTimer, LayerTimes, StageTimings, TimeTotal};

    #[test]
    fn what_lies_between_two_borders_is_the_layers() {
        let cpu = CpuBackend::new(1).expect("one thread");
        // 1, 3, 6, 10 and so on: no two of its steps are alike.
        let reads = AtomicU32::new(0);
        let timer = LayerTimer::new(Box::new(move || {
            let read = reads.fetch_add(1, Ordering::Relaxed) + 1;
            f64::from(read * (read + 1) / 2)
        }));
        timer.begin(&cpu);
        timer.pass(&cpu, LayerKind::Embed, LayerOp::Forward);
        timer.pass(&cpu, LayerKind::Mlp { block: 0 }, LayerOp::Forward);
        timer.begin(&cpu);
        timer.pass(&cpu, LayerKind::Mlp { block: 1 }, LayerOp::Forward);
        let times = timer.take(&cpu).layers.expect("there is a clock");
        let spent = |class| times.spent(class, LayerOp::Forward);
        assert_eq!(spent(LayerClass::Embed), TimeTotal { count: 1, us: 2.0 });
        assert_eq!(spent(LayerClass::Mlp), TimeTotal { count: 2, us: 8.0 });
        assert_eq!(spent(LayerClass::Mlp).mean_us(), Some(4.0));
        assert_eq!(spent(LayerClass::Head).mean_us(), None);
        assert_eq!(
            timer.take(&cpu).layers,
            Some(LayerTimes::default()),
            "each time is returned once"
        );
    }

    #[test]
    fn without_a_clock_nothing_is_timed() {
        let cpu = CpuBackend::new(1).expect("one thread");
        let timer = LayerTimer::default();
        timer.begin(&cpu);
        timer.pass(&cpu, LayerKind::Head, LayerOp::Recompute);
        assert_eq!(timer.take(&cpu), StageTimings::default());
    }

    #[test]
    fn times_that_cannot_be_are_not_sound() {
        let is_sound = |us: f64| {
            let mut times = LayerTimes::default();
            times.add(LayerClass::Mlp, LayerOp::Commit, us);
            times.is_sound()
        };
        assert!(is_sound(0.0) && is_sound(5.0) && LayerTimes::default().is_sound());
        assert!(
            !is_sound(-1.0)
                && !is_sound(f64::NAN)
                && !is_sound(f64::INFINITY)
                && !is_sound(f64::MAX)
        );
        assert!(!is_sound(5e-324), "shorter than any clock shows");
        let mut never = LayerTimes::default();
        never.0[0][0].us = 1.0;
        assert!(!never.is_sound(), "what was never done took no time");
    }
}
