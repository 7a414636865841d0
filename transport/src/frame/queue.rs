//! A bounded queue of frames to one peer. Plain threads put frames in, one task writes them.

use std::sync::Arc;

use thiserror::Error;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::message::OutgoingFrame;
use super::write::{WriteFrameError, write_frame};

/// The most bytes of floats that wait for one peer. The next frame is handed back; a frame that is
/// longer than all of this waits alone.
pub const FRAME_QUEUE_BYTES: u64 = 256 << 20;
/// Bytes are counted in units of this size, so that the count fits the permits of a semaphore.
const UNIT_BYTES: u64 = 1024;
const QUEUE_UNITS: u32 = (FRAME_QUEUE_BYTES / UNIT_BYTES) as u32;

/// Where frames to one peer are put in. Copies share the queue.
#[derive(Clone, Debug)]
pub struct FrameQueue {
    frames: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
}

/// Where they come out.
#[derive(Debug)]
pub struct FrameOutlet {
    frames: mpsc::Receiver<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    frame: OutgoingFrame,
    _room: OwnedSemaphorePermit,
}

/// Why a frame was handed back.
#[derive(Debug, Error)]
pub enum FrameNotQueued {
    /// Too much waits already. Try again later.
    #[error("too many frames, or {FRAME_QUEUE_BYTES} bytes of them, wait for this peer already")]
    Full(OutgoingFrame),
    /// Nobody writes to this peer any more.
    #[error("the road to this peer is closed")]
    Closed(OutgoingFrame),
}

/// A queue to one peer, in which at most `frames_max` frames wait.
///
/// # Panics
/// If `frames_max` is zero.
#[must_use]
pub fn frame_queue(frames_max: usize) -> (FrameQueue, FrameOutlet) {
    let (sender, receiver) = mpsc::channel(frames_max);
    let room = Arc::new(Semaphore::new(QUEUE_UNITS as usize));
    (FrameQueue { frames: sender, room }, FrameOutlet { frames: receiver })
}

impl FrameQueue {
    /// Puts a frame in, or hands it back. Never waits, and may be called on any thread.
    ///
    /// # Errors
    /// If there is no room, or the outlet is gone.
    pub fn try_send(&self, frame: OutgoingFrame) -> Result<(), FrameNotQueued> {
        if self.frames.is_closed() {
            return Err(FrameNotQueued::Closed(frame));
        }
        let units = frame.body_bytes().div_ceil(UNIT_BYTES).min(u64::from(QUEUE_UNITS));
        let units = u32::try_from(units).expect("not above the units of a queue");
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(units) else {
            return Err(FrameNotQueued::Full(frame));
        };
        self.frames.try_send(Waiting { frame, _room: room }).map_err(|error| match error {
            TrySendError::Full(waiting) => FrameNotQueued::Full(waiting.frame),
            TrySendError::Closed(waiting) => FrameNotQueued::Closed(waiting.frame),
        })
    }
}

impl FrameOutlet {
    /// Writes what is put in, until every [`FrameQueue`] is dropped. `on_written` gets the bytes
    /// of each frame that went. A frame that fails is lost; what waits stays for another stream.
    ///
    /// # Errors
    /// If the stream fails.
    pub async fn write_to<W>(
        &mut self,
        writer: &mut W,
        mut on_written: impl FnMut(u64),
    ) -> Result<(), WriteFrameError>
    where
        W: AsyncWrite + Unpin + ?Sized,
    {
        while let Some(waiting) = self.frames.recv().await {
            on_written(write_frame(writer, &waiting.frame).await?);
        }
        Ok(())
    }
}
