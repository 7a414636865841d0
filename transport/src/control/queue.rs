//! Control messages that wait for one connection: bounded, and the oldest is dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::limits::{CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX};

/// Most bytes of one write.
pub(super) const BATCH_BYTES_MAX: usize = 256 << 10;
/// Most long messages that wait for one connection.
const LONG_MESSAGES_MAX: usize = 4;

/// The messages that wait for one connection. Senders enqueue messages, the tasks of the connection
/// remove them.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    pub(super) short: MessageQueue,
    pub(super) long: MessageQueue,
}

/// The result of enqueueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueOutcome {
    /// It waits, and this many older ones were dropped for it.
    Waits { dropped: u64 },
    /// It is empty or longer than can be sent.
    NotSendable,
}

/// One queue. The lock guards the queue alone, is held for a few instructions, and never while
/// another one is.
#[derive(Debug)]
pub(super) struct MessageQueue {
    queue: Mutex<QueuedMessages>,
    notify: Notify,
    messages_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct QueuedMessages {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl ControlQueue {
    pub(crate) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self {
            short: MessageQueue::new(messages_max, bytes_max),
            long: MessageQueue::new(
                LONG_MESSAGES_MAX,
                LONG_MESSAGES_MAX * CONTROL_MESSAGE_BYTES_MAX,
            ),
        }
    }

    pub(crate) fn put(&self, message: Bytes) -> EnqueueOutcome {
        if message.is_empty() || message.len() > CONTROL_MESSAGE_BYTES_MAX {
            return EnqueueOutcome::NotSendable;
        }
        let is_short = message.len() <= CONTROL_FRAME_BYTES_MAX;
        let queue = if is_short { &self.short } else { &self.long };
        EnqueueOutcome::Waits { dropped: queue.put(message) }
    }
}

impl MessageQueue {
    fn new(messages_max: usize, bytes_max: usize) -> Self {
        let messages_max = messages_max.max(1);
        let bytes_max = bytes_max.max(1);
        Self { queue: Mutex::default(), notify: Notify::new(), messages_max, bytes_max }
    }

    fn put(&self, message: Bytes) -> u64 {
        let mut dropped = 0;
        {
            let mut queued = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            while queued.messages.len() >= self.messages_max
                || (queued.bytes + message.len() > self.bytes_max && !queued.messages.is_empty())
            {
                let oldest = queued.messages.pop_front().expect("the limits are above zero");
                queued.bytes -= oldest.len();
                dropped += 1;
            }
            queued.bytes += message.len();
            queued.messages.push_back(message);
        }
        self.notify.notify_one();
        dropped
    }

    /// Removes the oldest, as many as one write holds. Waits until there is one; may be dropped
    /// while it waits.
    pub(super) async fn take(&self, into: &mut Vec<Bytes>) {
        while !self.try_take(into) {
            self.notify.notified().await;
        }
    }

    /// Removes the oldest, as many as one write holds, if there is one.
    pub(super) fn try_take(&self, into: &mut Vec<Bytes>) -> bool {
        let mut queued = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(message) = queued.messages.pop_front()
        {
            bytes += message.len();
            into.push(message);
        }
        queued.bytes -= bytes;
        bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(byte: u8, length: usize) -> Bytes {
        Bytes::from(vec![byte; length])
    }

    fn take_all(queue: &MessageQueue) -> Vec<u8> {
        let mut taken = Vec::new();
        while queue.try_take(&mut taken) {}
        taken.iter().map(|message| message[0]).collect()
    }

    #[test]
    fn the_oldest_falls_out_when_the_count_is_full() {
        let queue = ControlQueue::new(3, 1 << 20);
        for byte in 0..3 {
            assert_eq!(queue.put(message(byte, 1)), EnqueueOutcome::Waits { dropped: 0 });
        }
        assert_eq!(queue.put(message(3, 1)), EnqueueOutcome::Waits { dropped: 1 });
        assert_eq!(take_all(&queue.short), [1, 2, 3]);
        assert_eq!(queue.put(message(4, 1)), EnqueueOutcome::Waits { dropped: 0 });
    }

    #[test]
    fn the_oldest_fall_out_when_the_bytes_are_full() {
        let queue = ControlQueue::new(100, 10);
        queue.put(message(0, 5));
        assert_eq!(queue.put(message(1, 5)), EnqueueOutcome::Waits { dropped: 0 });
        assert_eq!(queue.put(message(2, 6)), EnqueueOutcome::Waits { dropped: 2 });
        assert_eq!(queue.put(message(3, 20)), EnqueueOutcome::Waits { dropped: 1 });
        assert_eq!(take_all(&queue.short), [3], "one that is above the limit waits alone");
    }

    #[test]
    fn long_messages_wait_apart_and_what_cannot_be_sent_is_reported() {
        let queue = ControlQueue::new(100, 1 << 30);
        assert_eq!(queue.put(Bytes::new()), EnqueueOutcome::NotSendable);
        queue.put(message(1, CONTROL_FRAME_BYTES_MAX));
        queue.put(message(2, CONTROL_FRAME_BYTES_MAX + 1));
        let longest = message(3, CONTROL_MESSAGE_BYTES_MAX);
        assert_eq!(queue.put(longest), EnqueueOutcome::Waits { dropped: 0 });
        let too_long = message(4, CONTROL_MESSAGE_BYTES_MAX + 1);
        assert_eq!(queue.put(too_long), EnqueueOutcome::NotSendable);
        assert_eq!(take_all(&queue.short), [1]);
        assert_eq!(take_all(&queue.long), [2, 3]);
    }

    #[tokio::test]
    async fn a_waiting_task_is_woken_by_a_message() {
        let queue = ControlQueue::new(2, 100);
        let mut taken = Vec::new();
        tokio::join!(queue.short.take(&mut taken), async { queue.put(message(7, 1)) });
        assert_eq!(taken, [message(7, 1)]);
    }
}
