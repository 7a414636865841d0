//! Streams: queues of work, moments in them, and when what is in them is done.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use cudarc::driver::sys::CUresult;

use super::work::Work;
use super::{Answer, Machine};
use crate::settings::Order;

/// Things that are enqueued in a stream and not done, at most: a caller that enqueues more waits for room.
const WAITING_MAX: usize = 1024;
/// Things done at once when streams are drawn.
const DRAWN_AT_ONCE: u64 = 8;

/// The work that a stream collects for a graph.
pub struct Capture {
    work: Vec<Work>,
    by: ThreadId,
    /// Work was enqueued that no graph can have.
    is_spoilt: bool,
}

/// A stream: its work that waits, and how much of it is done.
pub struct Queue {
    pub device: usize,
    waiting: VecDeque<Work>,
    told: u64,
    done: u64,
    capture: Option<Capture>,
}

/// The position of a stream when an event was recorded: how much work had been enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    stream: u64,
    position: u64,
}

/// An event: where it was recorded last, and when it was passed.
pub struct Event {
    pub device: usize,
    pub is_timed: bool,
    pub recorded: Option<Moment>,
    /// Nanoseconds at which it was last passed.
    pub passed_ns: Option<u64>,
}

impl Queue {
    pub fn new(device: usize) -> Self {
        Self { device, waiting: VecDeque::new(), told: 0, done: 0, capture: None }
    }

    /// Whether its work is collected for a graph.
    pub const fn captures(&self) -> bool {
        self.capture.is_some()
    }
}

impl Machine {
    /// Enqueues work in a stream, which does it in its turn, or keeps it for a graph.
    pub fn tell(&mut self, stream: u64, work: Work) -> Answer<()> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(capture) = &mut queue.capture {
            // Work of a second thread would be in the graph, too, and not have happened.
            if capture.by != thread::current().id()
                || matches!(work, Work::Record { .. } | Work::Wait { .. } | Work::Write { .. })
            {
                capture.is_spoilt = true;
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
            capture.work.push(work);
            return Ok(());
        }
        queue.waiting.push_back(work);
        queue.told += 1;
        if queue.waiting.len() > WAITING_MAX {
            let position = queue.done + 1;
            self.finish(Moment { stream, position });
        }
        self.go_on();
        Ok(())
    }

    /// Does what the order of this machine has done by itself.
    fn go_on(&mut self) {
        match self.settings.order {
            Order::Lazy => {}
            Order::Eager => {
                let streams: Vec<u64> = self.streams.keys().copied().collect();
                while streams.iter().any(|stream| self.step(*stream)) {}
            }
            Order::Drawn { .. } => {
                let drawn = self.draw(self.streams.len() as u64);
                let stream = *self.streams.keys().nth(drawn as usize).expect("one was told");
                for _ in 0..self.draw(DRAWN_AT_ONCE) {
                    self.step(stream);
                }
            }
        }
    }

    /// Does the next thing of a stream. False if there is none, or if it waits.
    fn step(&mut self, stream: u64) -> bool {
        let Some(queue) = self.streams.get_mut(&stream) else { return false };
        let device = queue.device;
        match queue.waiting.front() {
            None => return false,
            Some(Work::Wait { stream, position }) => {
                let awaited = Moment { stream: *stream, position: *position };
                if !self.is_past(awaited) {
                    return false;
                }
            }
            Some(_) => {}
        }
        let queue = self.streams.get_mut(&stream).expect("as before");
        let work = queue.waiting.pop_front().expect("as before");
        queue.done += 1;
        if self.devices[device].fault.is_none() {
            self.perform(device, &work);
        }
        true
    }

    fn perform(&mut self, device: usize, work: &Work) {
        let is_astray = match work {
            Work::Launch(_) => {
                self.launches += 1;
                self.settings.faulty_launch == Some(self.launches)
            }
            Work::Record { event } => {
                let now = self.now_ns();
                if let Some(event) = self.events.get_mut(event) {
                    event.passed_ns = Some(now);
                }
                false
            }
            Work::Copy { .. }
            | Work::Write { .. }
            | Work::Fill { .. }
            | Work::Product(_)
            | Work::Wait { .. } => false,
        };
        if is_astray || work.perform(&self.blocks).is_err() {
            self.devices[device].fault = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }

    /// Whether the moment is past. All work of a stream that was destroyed is.
    fn is_past(&self, moment: Moment) -> bool {
        let queue = self.streams.get(&moment.stream);
        queue.is_none_or(|queue| queue.done >= moment.position)
    }

    /// Does what has to be done before a moment, and no more.
    pub fn finish(&mut self, moment: Moment) {
        while !self.is_past(moment) {
            if self.step(moment.stream) {
                continue;
            }
            let first = self.streams[&moment.stream].waiting.front();
            let Some(Work::Wait { stream, position }) = first else {
                unreachable!("a stream that does not go on waits for another")
            };
            self.finish(Moment { stream: *stream, position: *position });
        }
    }

    /// The moment after all that was enqueued in a stream.
    pub fn now_in(&self, stream: u64) -> Answer<Moment> {
        let queue = self.streams.get(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(Moment { stream, position: queue.told })
    }

    /// Waits for a stream, as the host does.
    pub fn wait_for_stream(&mut self, stream: u64) -> Answer<()> {
        let moment = self.now_in(stream)?;
        let queue = self.streams.get_mut(&stream).expect("just seen");
        if let Some(capture) = &mut queue.capture {
            capture.is_spoilt = true;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let device = queue.device;
        self.finish(moment);
        self.let_go();
        self.check(device)
    }

    /// Records an event in a stream.
    pub fn record(&mut self, event: u64, stream: u64) -> Answer<()> {
        let found = self.events.get_mut(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        found.passed_ns = None;
        self.tell(stream, Work::Record { event })?;
        let moment = self.now_in(stream)?;
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = Some(moment);
        }
        Ok(())
    }

    /// Has a stream wait for what an event was last recorded behind.
    pub fn follow(&mut self, stream: u64, event: u64) -> Answer<()> {
        let event = self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        match event.recorded {
            Some(Moment { stream: first, position }) => {
                self.tell(stream, Work::Wait { stream: first, position })
            }
            None => Ok(()),
        }
    }

    /// Begins a capture by this thread.
    pub fn begin_capture(&mut self, stream: u64) -> Answer<()> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if queue.captures() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let by = thread::current().id();
        queue.capture = Some(Capture { work: Vec::new(), by, is_spoilt: false });
        Ok(())
    }

    /// Ends the capture of a stream; the work that was enqueued is a graph.
    pub fn end_capture(&mut self, stream: u64) -> Answer<Vec<Work>> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let capture = queue.capture.take().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.is_spoilt {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Ok(capture.work)
    }

    /// Frees memory that was given back once no waiting work can use it.
    fn let_go(&mut self) {
        if self.streams.values().all(|queue| queue.waiting.is_empty()) {
            self.blocks.let_go();
        }
    }
}
