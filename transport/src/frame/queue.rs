//! Bounded queues of frames to one peer, one for each urgency. Plain threads put frames in, one
//! task writes them. Critical frames go first; those of one urgency keep their order.

use std::sync::Arc;

use thiserror::Error;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::message::{OutgoingFrame, Urgency};
use super::write::{WriteFrameError, write_frame};

/// The most bytes of floats of one urgency that wait for one peer. The next frame is handed back; a
/// frame that is longer than all of this waits alone.
pub const FRAME_QUEUE_BYTES: u64 = 256 << 20;
/// Bytes are counted in units of this size, so that the count fits the permits of a semaphore.
const UNIT_BYTES: u64 = 1024;
const QUEUE_UNITS: u32 = (FRAME_QUEUE_BYTES / UNIT_BYTES) as u32;

/// Where frames to one peer are put in. Copies share the queues.
#[derive(Clone, Debug)]
pub struct FrameQueue {
    critical: UrgencySender,
    background: UrgencySender,
}

/// Where they come out. When it is dropped, senders that wait for space get their frames back.
#[derive(Debug)]
pub struct FrameOutlet {
    critical: UrgencyReceiver,
    background: UrgencyReceiver,
}

/// Where frames of one urgency come out.
#[derive(Debug)]
struct UrgencyReceiver {
    frames: mpsc::Receiver<QueuedFrame>,
    permits: Arc<Semaphore>,
}

impl Drop for UrgencyReceiver {
    fn drop(&mut self) {
        self.permits.close();
    }
}

/// Where frames of one urgency are put in.
#[derive(Clone, Debug)]
struct UrgencySender {
    frames: mpsc::Sender<QueuedFrame>,
    permits: Arc<Semaphore>,
}

#[derive(Debug)]
struct QueuedFrame {
    frame: OutgoingFrame,
    _permit: OwnedSemaphorePermit,
}

/// Why a frame was handed back.
#[derive(Debug, Error)]
pub enum FrameNotQueued {
    /// Too much waits already. Try again later.
    #[error("too many frames, or {FRAME_QUEUE_BYTES} bytes of them, wait for this peer already")]
    Full(OutgoingFrame),
    /// The task that writes to this peer has ended.
    #[error("the connection to this peer is closed")]
    Closed(OutgoingFrame),
}

/// The queues to one peer, in each of which at most `frames_max` frames wait.
///
/// # Panics
/// If `frames_max` is zero.
#[must_use]
pub fn frame_queue(frames_max: usize) -> (FrameQueue, FrameOutlet) {
    let (critical, critical_outlet) = UrgencySender::new(frames_max);
    let (background, background_outlet) = UrgencySender::new(frames_max);
    let outlet = FrameOutlet { critical: critical_outlet, background: background_outlet };
    (FrameQueue { critical, background }, outlet)
}

impl FrameQueue {
    /// Puts a frame in, or hands it back: each urgency has space of its own. Never waits, and may
    /// be called on any thread.
    ///
    /// # Errors
    /// If there is no space, or the outlet is gone.
    pub fn try_send(&self, frame: OutgoingFrame) -> Result<(), FrameNotQueued> {
        self.sender_for(&frame).try_send(frame)
    }

    /// Puts a frame in once there is space for it; returns it if it will not be written any more.
    pub async fn send(&self, frame: OutgoingFrame) -> Option<OutgoingFrame> {
        self.sender_for(&frame).send(frame).await
    }

    fn sender_for(&self, frame: &OutgoingFrame) -> &UrgencySender {
        match frame.urgency() {
            Urgency::Critical => &self.critical,
            Urgency::Background => &self.background,
        }
    }
}

impl UrgencySender {
    fn new(frames_max: usize) -> (Self, UrgencyReceiver) {
        let (sender, frames) = mpsc::channel(frames_max);
        let permits = Arc::new(Semaphore::new(QUEUE_UNITS as usize));
        (
            Self { frames: sender, permits: Arc::clone(&permits) },
            UrgencyReceiver { frames, permits },
        )
    }

    async fn send(&self, frame: OutgoingFrame) -> Option<OutgoingFrame> {
        let Ok(permit) = Arc::clone(&self.permits).acquire_many_owned(units(&frame)).await else {
            return Some(frame);
        };
        let sent = self.frames.send(QueuedFrame { frame, _permit: permit }).await;
        sent.err().map(|unsent| unsent.0.frame)
    }

    fn try_send(&self, frame: OutgoingFrame) -> Result<(), FrameNotQueued> {
        if self.frames.is_closed() {
            return Err(FrameNotQueued::Closed(frame));
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_many_owned(units(&frame)) else {
            return Err(FrameNotQueued::Full(frame));
        };
        self.frames.try_send(QueuedFrame { frame, _permit: permit }).map_err(|error| match error {
            TrySendError::Full(queued) => FrameNotQueued::Full(queued.frame),
            TrySendError::Closed(queued) => FrameNotQueued::Closed(queued.frame),
        })
    }
}

/// The units of space that a frame occupies while it waits.
fn units(frame: &OutgoingFrame) -> u32 {
    let units = frame.body_bytes().div_ceil(UNIT_BYTES).min(u64::from(QUEUE_UNITS));
    u32::try_from(units).expect("not above the units of a queue")
}

impl FrameOutlet {
    /// Writes the frames that are enqueued, critical ones before others, until every [`FrameQueue`]
    /// is dropped. `on_written` gets the bytes of each frame that went. A frame that fails is lost;
    /// frames that wait stay for another stream.
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
        while let Some(queued) = self.next().await {
            on_written(write_frame(writer, &queued.frame).await?);
        }
        Ok(())
    }

    /// The frame that goes next, or `None` if none waits and none can come.
    async fn next(&mut self) -> Option<QueuedFrame> {
        tokio::select! {
            biased;
            Some(queued) = self.critical.frames.recv() => Some(queued),
            Some(queued) = self.background.frames.recv() => Some(queued),
            else => None,
        }
    }
}
