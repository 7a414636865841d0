//! Streams: queues of work, positions in them, and when what is in them is done.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use cudarc::driver::sys::CUresult;

use super::exchange::ExchangeManners;
use super::work::StreamWork;
use super::{DriverResult, EmulatedMachine};
use crate::settings::ExecutionOrder;

/// Things that are enqueued in a stream and not done, at most: a caller that enqueues more waits
/// until some are done.
const WAITING_MAX: usize = 1024;
/// Things done at once when streams are drawn.
const DRAWN_AT_ONCE: u64 = 8;

/// The work that a stream collects for a graph.
pub struct StreamCapture {
    work: Vec<StreamWork>,
    by: ThreadId,
    /// Work was enqueued that no graph can have.
    is_invalidated: bool,
}

/// A stream: its work that waits, and how much of it is done.
pub struct EmulatedStream {
    pub device: usize,
    waiting: VecDeque<StreamWork>,
    enqueued: u64,
    done: u64,
    capture: Option<StreamCapture>,
}

/// The position of a stream when an event was recorded: how much work had been enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    stream: u64,
    position: u64,
}

/// An event: where it was recorded last, and when it was passed.
pub struct EmulatedEvent {
    pub device: usize,
    pub is_timed: bool,
    pub recorded: Option<StreamPosition>,
    /// Nanoseconds at which it was last passed.
    pub passed_ns: Option<u64>,
}

impl EmulatedStream {
    pub fn new(device: usize) -> Self {
        Self { device, waiting: VecDeque::new(), enqueued: 0, done: 0, capture: None }
    }

    /// Whether its work is collected for a graph.
    pub const fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }
}

impl EmulatedMachine {
    /// Enqueues work in a stream, which does it in its turn, or keeps it for a graph.
    pub fn enqueue(&mut self, stream: u64, work: StreamWork) -> DriverResult<()> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(capture) = &mut queue.capture {
            // Work of a second thread would be in the graph, too, and not have happened.
            if capture.by != thread::current().id()
                || matches!(
                    work,
                    StreamWork::Record { .. }
                        | StreamWork::Wait { .. }
                        | StreamWork::Write { .. }
                        | StreamWork::Exchange(..)
                )
            {
                capture.is_invalidated = true;
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
            capture.work.push(work);
            return Ok(());
        }
        queue.waiting.push_back(work);
        queue.enqueued += 1;
        if queue.waiting.len() > WAITING_MAX {
            let position = queue.done + 1;
            self.run_until(StreamPosition { stream, position });
        }
        self.advance();
        Ok(())
    }

    /// Does the work that the execution order of this machine does without a caller that waits.
    fn advance(&mut self) {
        match self.settings.order {
            ExecutionOrder::Lazy => {}
            ExecutionOrder::Eager => {
                let streams: Vec<u64> = self.streams.keys().copied().collect();
                while streams.iter().any(|stream| self.step(*stream)) {}
            }
            ExecutionOrder::Random { .. } => {
                let drawn = self.draw(self.streams.len() as u64);
                let stream = *self.streams.keys().nth(drawn as usize).expect("one was enqueued");
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
            Some(StreamWork::Wait { stream, position }) => {
                let awaited = StreamPosition { stream: *stream, position: *position };
                if !self.is_reached(awaited) {
                    return false;
                }
            }
            Some(StreamWork::Exchange(rank, exchange)) if self.devices[device].fault.is_none() => {
                let manners = ExchangeManners {
                    is_eager: self.settings.order == ExecutionOrder::Eager,
                    notices_ends: self.settings.order != ExecutionOrder::Lazy,
                };
                match exchange.advance(rank, manners, &self.blocks) {
                    Ok(true) => {}
                    Ok(false) => return false,
                    Err(_) => {
                        self.devices[device].fault = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
                    }
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

    fn perform(&mut self, device: usize, work: &StreamWork) {
        let is_faulty = match work {
            StreamWork::Launch(_) => {
                self.launches += 1;
                self.settings.faulty_launch == Some(self.launches)
            }
            StreamWork::Record { event } => {
                let now = self.now_ns();
                if let Some(event) = self.events.get_mut(event) {
                    event.passed_ns = Some(now);
                }
                false
            }
            StreamWork::Copy { .. }
            | StreamWork::Write { .. }
            | StreamWork::Fill { .. }
            | StreamWork::Product(_)
            | StreamWork::Exchange(..)
            | StreamWork::Wait { .. } => false,
        };
        if is_faulty || work.perform(&self.blocks).is_err() {
            self.devices[device].fault = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }

    /// Whether a stream has reached a position. One that was destroyed has reached all of them.
    fn is_reached(&self, target: StreamPosition) -> bool {
        let queue = self.streams.get(&target.stream);
        queue.is_none_or(|queue| queue.done >= target.position)
    }

    /// Does what has to be done to reach a position, and no more.
    pub fn run_until(&mut self, target: StreamPosition) {
        while !self.is_reached(target) {
            if self.step(target.stream) {
                continue;
            }
            let first = self.streams[&target.stream].waiting.front();
            let Some(StreamWork::Wait { stream, position }) = first else {
                unreachable!(
                    "a stream that does not go on waits for another, and for no other rank"
                )
            };
            self.run_until(StreamPosition { stream: *stream, position: *position });
        }
    }

    /// The position after all that was enqueued in a stream.
    pub fn stream_end(&self, stream: u64) -> DriverResult<StreamPosition> {
        let queue = self.streams.get(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(StreamPosition { stream, position: queue.enqueued })
    }

    /// Waits for a stream, as the host does.
    pub fn wait_for_stream(&mut self, stream: u64) -> DriverResult<()> {
        let end = self.stream_end(stream)?;
        let queue = self.streams.get_mut(&stream).expect("just seen");
        if let Some(capture) = &mut queue.capture {
            capture.is_invalidated = true;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let device = queue.device;
        self.run_until(end);
        self.release_freed();
        self.check(device)
    }

    /// Does what can be done of a stream without a wait. Yields whether all of it is done.
    pub fn query_stream(&mut self, stream: u64) -> DriverResult<bool> {
        let end = self.stream_end(stream)?;
        while self.step(stream) {}
        Ok(self.is_reached(end))
    }

    /// Records an event in a stream.
    pub fn record(&mut self, event: u64, stream: u64) -> DriverResult<()> {
        let found = self.events.get_mut(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        found.passed_ns = None;
        self.enqueue(stream, StreamWork::Record { event })?;
        let end = self.stream_end(stream)?;
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = Some(end);
        }
        Ok(())
    }

    /// Has a stream wait for what an event was last recorded behind.
    pub fn stream_wait_event(&mut self, stream: u64, event: u64) -> DriverResult<()> {
        let event = self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        match event.recorded {
            Some(StreamPosition { stream: first, position }) => {
                self.enqueue(stream, StreamWork::Wait { stream: first, position })
            }
            None => Ok(()),
        }
    }

    /// Begins a capture by this thread.
    pub fn begin_capture(&mut self, stream: u64) -> DriverResult<()> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if queue.is_capturing() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let by = thread::current().id();
        queue.capture = Some(StreamCapture { work: Vec::new(), by, is_invalidated: false });
        Ok(())
    }

    /// Ends the capture of a stream; the work that was enqueued is a graph.
    pub fn end_capture(&mut self, stream: u64) -> DriverResult<Vec<StreamWork>> {
        let queue = self.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let capture = queue.capture.take().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.is_invalidated {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Ok(capture.work)
    }

    /// Releases freed memory once no waiting work can use it.
    fn release_freed(&mut self) {
        if self.streams.values().all(|queue| queue.waiting.is_empty()) {
            self.blocks.release_freed();
        }
    }
}
