//! What a worker reports of its work: that it makes progress, and how far what takes long is.

use zbelastic_types::{Bytes, Step};

use super::Worker;
use crate::cluster::wire::{NodeMessage, PieceRef};
use crate::cluster::work::{Activity, WorkCount};

/// Ticks between two reports of an activity: people read no faster, and heartbeats carry the count of
/// work in between.
const REPORT_TICKS: u32 = 50;

/// What is under way, and what was reported of it.
#[derive(Default)]
pub(super) struct WorkLog {
    /// Bytes of layers that were verified on their way here.
    received: WorkCount,
    /// Of them, those before the fetches that are under way.
    received_before: u64,
    /// Bytes of the layers that are on their way, or came with them.
    receiving: u64,
    writing: Option<Writing>,
    reported: Option<(u64, Option<Activity>)>,
    ticks: u32,
}

/// Layers of a version on their way to disks.
struct Writing {
    version: Step,
    done: u64,
    total: u64,
}

impl WorkLog {
    /// A layer of so many bytes is fetched. Yields what its bytes are counted by.
    pub(super) fn begin_receiving(&mut self, length: u64) -> WorkCount {
        self.receiving += length;
        self.received.clone()
    }

    /// No layer is on its way any more.
    pub(super) fn end_receiving(&mut self) {
        self.received_before = self.received.total();
        self.receiving = 0;
    }

    pub(super) fn begin_writing(&mut self, piece: PieceRef) {
        let version = piece.version;
        let writing = self.writing.take().filter(|writing| writing.version == version);
        let mut writing = writing.unwrap_or(Writing { version, done: 0, total: 0 });
        writing.total += piece.length;
        self.writing = Some(writing);
    }

    /// A piece is durable, or will not be.
    pub(super) fn note_written(&mut self, piece: PieceRef, is_durable: bool) {
        let version = piece.version;
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.version == version)
        else {
            return;
        };
        writing.done += piece.length;
        if !is_durable || writing.done >= writing.total {
            self.writing = None;
        }
    }

    fn activity(&self, evaluated: Option<(u32, u32)>) -> Option<Activity> {
        let received = self.received.total() - self.received_before;
        if received < self.receiving {
            let (done, total) = (Bytes(received), Bytes(self.receiving));
            return Some(Activity::Receiving { done, total });
        }
        if let Some((done, total)) = evaluated {
            return Some(Activity::Evaluating { done, total });
        }
        let Writing { version, done, total } = self.writing.as_ref()?;
        Some(Activity::Writing { version: *version, done: Bytes(*done), total: Bytes(*total) })
    }
}

impl Worker {
    /// Reports work that was done since the last report, if it is time for one.
    pub(super) fn report_work(&mut self) {
        let gauge = self.device.gauge();
        let done = gauge.work().total() + self.work.received.total();
        self.work.ticks += 1;
        if self.work.ticks < REPORT_TICKS {
            return;
        }
        self.work.ticks = 0;
        let activity = self.work.activity(gauge.evaluation().get());
        if self.work.reported != Some((done, activity)) {
            self.work.reported = Some((done, activity));
            self.tell_controllers(&NodeMessage::Working { done, activity });
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId};

    use super::*;

    fn piece(version: u64, layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { version: Step(version), layer: LayerId(layer), digest, length: 10 }
    }

    #[test]
    fn what_is_received_is_an_activity_until_all_of_it_is_here() {
        let mut log = WorkLog::default();
        let count = log.begin_receiving(30);
        let _same = log.begin_receiving(10);
        count.add(25);
        let receiving = |done| Activity::Receiving { done: Bytes(done), total: Bytes(40) };
        assert_eq!(log.activity(Some((1, 2))), Some(receiving(25)), "everybody waits for it");
        count.add(15);
        assert_eq!(log.activity(Some((1, 2))), Some(Activity::Evaluating { done: 1, total: 2 }));
        log.end_receiving();
        let _next = log.begin_receiving(10);
        let expected = Activity::Receiving { done: Bytes(0), total: Bytes(10) };
        assert_eq!(log.activity(None), Some(expected), "what came before is not counted again");
    }

    #[test]
    fn a_checkpoint_is_an_activity_until_it_is_durable_or_given_up() {
        let mut log = WorkLog::default();
        let writing = |version, done, total| {
            let (done, total) = (Bytes(done), Bytes(total));
            Some(Activity::Writing { version: Step(version), done, total })
        };
        log.begin_writing(piece(4, 0));
        log.begin_writing(piece(4, 1));
        log.note_written(piece(3, 0), false);
        log.note_written(piece(4, 1), true);
        assert_eq!(log.activity(None), writing(4, 10, 20));
        log.note_written(piece(4, 0), true);
        assert_eq!(log.activity(None), None);
        log.begin_writing(piece(5, 0));
        log.begin_writing(piece(6, 0));
        assert_eq!(log.activity(None), writing(6, 0, 10), "the newest");
        log.note_written(piece(6, 0), false);
        assert_eq!(log.activity(None), None);
    }
}
