//! Layers of checkpoints that clients read, and the evaluations that wait for that.

use std::collections::VecDeque;
use std::sync::Arc;

use zbelastic_transport::BulkBody;
use zbelastic_wire::PieceRef;

use zbelastic_api::LAYERS_READ_MAX;

/// Ticks between two messages to workers that layers are read.
const REPORT_TICKS: u32 = 50;
/// Ticks without a read after which nothing is held for another one.
const IDLE_TICKS: u32 = 1_000;

/// The layers that are read.
#[derive(Default)]
pub(super) struct Exports {
    /// Each keeps the chunk that was read last, which pieces that follow lie in as well. The one
    /// that was requested last is the last.
    bodies: VecDeque<(PieceRef, Arc<dyn BulkBody>)>,
    /// Whether any was read since the last message.
    is_read: bool,
    ticks: u32,
}

impl Exports {
    /// A part of a layer was read.
    pub(super) const fn note_read(&mut self) {
        self.is_read = true;
    }

    /// The body of a piece: the one that is read, or the one that `find` finds.
    pub(super) fn body(
        &mut self,
        piece: PieceRef,
        find: impl FnOnce() -> Option<Arc<dyn BulkBody>>,
    ) -> Option<Arc<dyn BulkBody>> {
        self.note_read();
        let opened = self.bodies.iter().position(|(of, _)| *of == piece);
        let opened = opened.and_then(|at| self.bodies.remove(at)).map(|(_, body)| body);
        let body = opened.or_else(find)?;
        if self.bodies.len() >= LAYERS_READ_MAX {
            self.bodies.pop_front();
        }
        self.bodies.push_back((piece, body.clone()));
        Some(body)
    }

    /// A tick. Yields whether workers are to be sent that layers are read.
    pub(super) fn handle_tick(&mut self) -> bool {
        self.ticks = self.ticks.saturating_add(1);
        if self.ticks >= IDLE_TICKS && !self.is_read {
            self.bodies.clear();
        }
        if self.ticks < REPORT_TICKS || !self.is_read {
            return false;
        }
        (self.ticks, self.is_read) = (0, false);
        true
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn found() -> Option<Arc<dyn BulkBody>> {
        Some(Arc::new(vec![0_u8; 10]))
    }

    fn never() -> Option<Arc<dyn BulkBody>> {
        panic!("it is read already")
    }

    #[test]
    fn as_many_layers_as_are_read_at_once_are_found_once() {
        let mut exports = Exports::default();
        for layer in 0..LAYERS_READ_MAX as u32 {
            assert!(exports.body(piece(layer), found).is_some());
        }
        for layer in (0..LAYERS_READ_MAX as u32).rev() {
            assert!(exports.body(piece(layer), never).is_some());
        }
        assert!(exports.body(piece(9), || None).is_none());
        assert!(exports.body(piece(9), found).is_some());
        assert_eq!(exports.bodies.len(), LAYERS_READ_MAX, "whoever was read longest ago went");
        assert!(exports.bodies.iter().all(|(of, _)| of.layer != LayerId(3)));
    }

    #[test]
    fn workers_are_sent_it_as_long_as_something_is_read() {
        let mut exports = Exports::default();
        let sent = |exports: &mut Exports, ticks: u32| {
            (0..ticks).filter(|_| exports.handle_tick()).count()
        };
        assert_eq!(sent(&mut exports, 3 * REPORT_TICKS), 0);
        exports.body(piece(0), found);
        assert_eq!(sent(&mut exports, 3 * REPORT_TICKS), 1);
        for _ in 0..3 {
            exports.body(piece(0), found);
            assert_eq!(sent(&mut exports, REPORT_TICKS), 1);
        }
    }
}
