//! The reports of a worker about its work: that it makes progress, and how far long activities are.

use std::collections::BTreeSet;

use zbelastic_consensus::plan::{LayerSource, PlanRecord};
use zbelastic_consensus::pre_copy::needed_at;
use zbelastic_trainer::elastic::{StateLen, image_bytes};
use zbelastic_types::{Bytes, Digest, LayerId, NodeId, Step};

use crate::WorkCounter;
use crate::device_gauge::DeviceGauge;
use crate::long_activity::LongActivity;
use crate::piece::PieceRef;
use crate::tick::ticks_of_seconds;

/// Ticks between two reports of an activity: faster is not readable, and heartbeats carry the count
/// of work in between.
const REPORT_TICKS: u32 = 50;

/// A command counts as work that makes progress while it lasts no longer than this many times the
/// time its bytes should need: machines share cores and memory.
const COMMAND_PATIENCE: f64 = 10.0;
/// How long a command may last for any number of bytes, in seconds.
const COMMAND_SECONDS_MIN: f64 = 10.0;
/// How often a command passes over each byte that is held: it draws or restores a layer, hashes it,
/// and gives its memory back.
const COMMAND_PASSES: f64 = 4.0;
/// Bytes that one thread passes over in a second at least. It was chosen, not measured: memory
/// of machines that are rented gives several times as much.
const COMMAND_BYTES_PER_S: f64 = 1e9;

/// Ticks for which an evaluation waits once a controller sent that layers are being read: several
/// times those between two such messages.
const EXPORT_TICKS: u32 = 200;
/// Ticks for which one evaluation waits for clients that read layers, however slowly they do: a
/// minute.
const EXPORT_PATIENCE: u32 = 6_000;

/// The work under way, and the last report of it.
#[derive(Default)]
pub struct WorkLog {
    /// Bytes of layers that were verified on their way here.
    received: WorkCounter,
    /// The part of those bytes from before the fetches that are under way.
    received_before: u64,
    /// Bytes of the layers that are on their way, or arrived with them.
    receiving: u64,
    /// Bytes of pieces of checkpoints that were verified on their way here.
    pieces: WorkCounter,
    writing: Option<CheckpointWriteProgress>,
    first_weights: FirstWeights,
    /// Data of the job that no node has.
    missing: Option<Digest>,
    /// Requests for such data that the nodes answered: waiting for it is progress.
    misses: u64,
    reported: Option<(u64, Option<LongActivity>)>,
    /// The count of work that was passed to the session last.
    progress: u64,
    ticks: u32,
    /// The gauge's count of edges of operations as it was read last.
    edges_seen: u64,
    command: CommandWatch,
    /// Ticks for which clients are assumed to read layers of a checkpoint.
    export_ticks: u32,
    /// Ticks for which the evaluation under way may yet wait for clients that read layers.
    export_patience: u32,
    /// Ticks for which an evaluation waited for nothing else: the run makes progress.
    export_waits: u64,
}

/// The command that the device thread executes.
#[derive(Default)]
struct CommandWatch {
    /// The gauge's count of command edges as it was read last.
    seen: u64,
    ticks: u32,
    /// Bytes that are held here under the plan.
    held: u64,
}

impl CommandWatch {
    /// Whether a command is under way that may last longer yet.
    fn gets_on(&mut self, edges: u64) -> bool {
        let is_same = edges == self.seen && !edges.is_multiple_of(2);
        self.ticks = if is_same { self.ticks + 1 } else { 0 };
        self.seen = edges;
        is_same && self.ticks <= command_ticks_max(self.held)
    }
}

/// Ticks that a command may last which passes over so many bytes.
fn command_ticks_max(held: u64) -> u32 {
    let seconds = COMMAND_PASSES * held as f64 / COMMAND_BYTES_PER_S;
    ticks_of_seconds(COMMAND_SECONDS_MIN + COMMAND_PATIENCE * seconds)
}

/// The layers of the plan that was loaded last which are as the run begins with them.
#[derive(Clone, Copy, Default)]
struct FirstWeights {
    /// The gauge's count of such bytes before it was loaded.
    before: u64,
    total: u64,
}

/// Layers of a version on their way to disks. One that is sealed again under another plan is
/// written again, and is still one piece.
struct CheckpointWriteProgress {
    version: Step,
    under_way: BTreeSet<PieceRef>,
    done: u64,
}

impl WorkLog {
    /// A layer of so many bytes is fetched. Yields the counter for its bytes.
    pub fn begin_receiving(&mut self, length: u64) -> WorkCounter {
        self.receiving += length;
        self.received.clone()
    }

    /// The counter for the bytes of fetched pieces.
    pub fn pieces(&self) -> &WorkCounter {
        &self.pieces
    }

    /// No layer is on its way any more.
    pub fn end_receiving(&mut self) {
        self.received_before = self.received.total();
        self.receiving = 0;
    }

    /// A piece is written here, and where copies of it are kept.
    pub fn begin_writing(&mut self, piece: PieceRef) {
        let version = piece.version;
        let writing = self.writing.take().filter(|writing| writing.version == version);
        let new = || CheckpointWriteProgress { version, under_way: BTreeSet::new(), done: 0 };
        self.writing.insert(writing.unwrap_or_else(new)).under_way.insert(piece);
    }

    /// A piece is durable, or will not be.
    pub fn note_written(&mut self, piece: PieceRef, is_durable: bool) {
        let version = piece.version;
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.version == version)
        else {
            return;
        };
        if writing.under_way.remove(&piece) {
            writing.done += piece.length;
        }
        if !is_durable || writing.under_way.is_empty() {
            self.writing = None;
        }
    }

    /// Data of the job was requested: all nodes answered that they do not have `missing`, or it is not
    /// waited for. Yields whether other data was missing before, or none.
    pub fn note_missing(&mut self, missing: Option<Digest>) -> bool {
        self.misses += u64::from(missing.is_some());
        std::mem::replace(&mut self.missing, missing) != missing
    }

    /// A controller sent that layers of a checkpoint are being read.
    pub fn note_export(&mut self) {
        self.export_ticks = EXPORT_TICKS;
    }

    /// A tick passes. Yields whether an evaluation behind the last step waits for the work that
    /// makes the run last: a checkpoint on its way to disks, or a model that is written.
    /// `is_keeping`: whether pieces are hashed, written, or kept for others.
    fn update_evaluation_wait(&mut self, is_evaluating: bool, is_keeping: bool) -> bool {
        self.export_ticks = self.export_ticks.saturating_sub(1);
        if !is_evaluating {
            self.export_patience = EXPORT_PATIENCE;
        }
        let is_read = self.export_ticks > 0 && self.export_patience > 0;
        if is_evaluating && is_read && !is_keeping {
            self.export_patience -= 1;
            self.export_waits += 1;
        }
        is_keeping || is_read
    }

    fn activity(&self, gauge: &DeviceGauge) -> Option<LongActivity> {
        if let Some(hash) = self.missing {
            return Some(LongActivity::AwaitingData { hash });
        }
        if let Some((done, total)) = self.drawing(gauge) {
            return Some(LongActivity::Drawing { done: Bytes(done), total: Bytes(total) });
        }
        let received = self.received.total() - self.received_before;
        if received < self.receiving {
            let done = Bytes(received);
            let total = Bytes(self.receiving);
            return Some(LongActivity::Receiving { done, total });
        }
        if let Some((done, total)) = gauge.evaluation().get() {
            return Some(LongActivity::Evaluating { done, total });
        }
        if let Some(layer) = gauge.awaited_layer() {
            return Some(LongActivity::AwaitingIslands { layer });
        }
        if let Some(step) = gauge.awaited_step() {
            return Some(LongActivity::AwaitingTokens { step });
        }
        if let Some(writing) = &self.writing {
            let CheckpointWriteProgress { version, under_way, done } = writing;
            let total = done + under_way.iter().map(|piece| piece.length).sum::<u64>();
            let total = Bytes(total);
            return Some(LongActivity::Writing { version: *version, done: Bytes(*done), total });
        }
        (self.export_ticks > 0).then_some(LongActivity::Exporting {})
    }

    /// Bytes of first weights that are there, and all of them, while the device's thread makes them.
    fn drawing(&self, gauge: &DeviceGauge) -> Option<(u64, u64)> {
        let FirstWeights { before, total } = self.first_weights;
        let done = gauge.drawn().total() - before;
        let is_executing = !gauge.command_edges().is_multiple_of(2);
        (is_executing && done < total).then_some((done, total))
    }

    /// Another plan is loaded, under which this node holds layers whose state has so many floats.
    pub fn note_load(
        &mut self,
        (plan, me): (&PlanRecord, NodeId),
        len: impl Fn(LayerId) -> Option<StateLen>,
        gauge: &DeviceGauge,
    ) {
        let Some(held) = needed_at(plan, me) else { return };
        let bytes = |layer: &LayerId| len(*layer).map_or(0, image_bytes);
        let is_first =
            |layer: &&LayerId| plan.sources.get(layer.index()) == Some(&LayerSource::Initial);
        self.command.held = held.iter().map(bytes).sum();
        let total = held.iter().filter(is_first).map(bytes).sum();
        self.first_weights = FirstWeights { before: gauge.drawn().total(), total };
    }

    /// Whether an operation began or ended since the last call, as the gauge counts edges; and if it
    /// did, whether one is under way now.
    pub fn note_edges(&mut self, edges: u64) -> Option<bool> {
        let has_changed = std::mem::replace(&mut self.edges_seen, edges) != edges;
        has_changed.then(|| !edges.is_multiple_of(2))
    }

    /// A tick passes: the activity of the device thread is read from its gauge, and an evaluation
    /// waits while pieces are kept (`is_keeping`). `moved` are the bytes that went to or from the
    /// disk, and those of pieces that arrived to be kept for others.
    pub fn handle_tick(&mut self, gauge: &DeviceGauge, is_keeping: bool, moved: u64) -> WorkReport {
        if self.command.gets_on(gauge.command_edges()) {
            gauge.work().add(1);
        }
        let is_evaluating = gauge.evaluation().get().is_some();
        gauge.evaluation().set_waiting(self.update_evaluation_wait(is_evaluating, is_keeping));
        let done = gauge.work().total() + self.received.total() + self.pieces.total() + moved;
        let progress = done + self.export_waits + self.misses;
        let is_new = std::mem::replace(&mut self.progress, progress) != progress;
        let activity = self.due_activity(done, gauge);
        WorkReport { progress: is_new.then_some(progress), activity }
    }

    /// The report to controllers about the work, if a report is due and it changed.
    fn due_activity(
        &mut self,
        done: u64,
        gauge: &DeviceGauge,
    ) -> Option<(u64, Option<LongActivity>)> {
        self.ticks += 1;
        if self.ticks < REPORT_TICKS {
            return None;
        }
        self.ticks = 0;
        let report = (done, self.activity(gauge));
        (self.reported.replace(report) != Some(report)).then_some(report)
    }
}

/// The reports of a worker about its work after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkReport {
    /// The count of work, if it grew: for the session.
    pub progress: Option<u64>,
    /// The count of work and the long activity, if that is due: for controllers.
    pub activity: Option<(u64, Option<LongActivity>)>,
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId};

    use super::*;

    fn piece(version: u64, layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef {
            run: RunId(1),
            version: Step(version),
            layer: LayerId(layer),
            digest,
            length: 10,
        }
    }

    #[test]
    fn what_is_received_is_an_activity_until_all_of_it_is_here() {
        let mut log = WorkLog::default();
        let count = log.begin_receiving(30);
        let _same = log.begin_receiving(10);
        count.add(25);
        let evaluating = DeviceGauge::default();
        evaluating.evaluation().set(Some((1, 2)));
        let receiving = |done| LongActivity::Receiving { done: Bytes(done), total: Bytes(40) };
        assert_eq!(log.activity(&evaluating), Some(receiving(25)), "everybody waits for it");
        count.add(15);
        assert_eq!(log.activity(&evaluating), Some(LongActivity::Evaluating { done: 1, total: 2 }));
        log.end_receiving();
        let _next = log.begin_receiving(10);
        let expected = LongActivity::Receiving { done: Bytes(0), total: Bytes(10) };
        assert_eq!(
            log.activity(&DeviceGauge::default()),
            Some(expected),
            "what came before is not counted again"
        );
    }

    #[test]
    fn data_that_no_node_has_is_an_activity_and_each_answer_is_progress() {
        let (mut log, gauge) = (WorkLog::default(), DeviceGauge::default());
        let hash = Digest([7; 32]);
        for answers in 1..=2 {
            assert_eq!(log.note_missing(Some(hash)), answers == 1, "it is logged once");
            assert_eq!(log.handle_tick(&gauge, false, 0).progress, Some(answers));
        }
        assert_eq!(log.handle_tick(&gauge, false, 0).progress, None, "silence is none");
        assert_eq!(log.activity(&gauge), Some(LongActivity::AwaitingData { hash }));
        assert!(log.note_missing(None));
        assert_eq!(log.activity(&gauge), None);
    }

    #[test]
    fn first_weights_are_an_activity_while_the_device_makes_them() {
        let gauge = DeviceGauge::default();
        gauge.drawn().add(7);
        let first_weights = FirstWeights { before: 7, total: 30 };
        let log = WorkLog { first_weights, ..WorkLog::default() };
        assert_eq!(log.activity(&gauge), None, "the device has not begun");
        gauge.mark_command_edge();
        let drawing = |done| LongActivity::Drawing { done: Bytes(done), total: Bytes(30) };
        assert_eq!(log.activity(&gauge), Some(drawing(0)));
        gauge.drawn().add(20);
        assert_eq!(log.activity(&gauge), Some(drawing(20)));
        gauge.drawn().add(10);
        assert_eq!(log.activity(&gauge), None, "they are there");
    }

    #[test]
    fn a_model_that_is_read_is_an_activity_for_a_while() {
        let gauge = DeviceGauge::default();
        let mut log = WorkLog::default();
        log.note_export();
        assert_eq!(log.activity(&gauge), Some(LongActivity::Exporting {}));
        gauge.evaluation().set(Some((1, 2)));
        let evaluating = LongActivity::Evaluating { done: 1, total: 2 };
        assert_eq!(log.activity(&gauge), Some(evaluating), "who waits for a loss sees its passes");
        gauge.evaluation().set(None);
        (0..EXPORT_TICKS).for_each(|_| _ = log.update_evaluation_wait(false, false));
        assert_eq!(log.activity(&gauge), None);
    }

    #[test]
    fn a_step_that_waits_for_islands_is_an_activity() {
        let gauge = DeviceGauge::default();
        gauge.set_awaited_layer(Some(LayerId(0)));
        let expected = LongActivity::AwaitingIslands { layer: LayerId(0) };
        assert_eq!(WorkLog::default().activity(&gauge), Some(expected));
        gauge.set_awaited_layer(None);
        assert_eq!(WorkLog::default().activity(&gauge), None);
    }

    #[test]
    fn a_step_that_waits_for_tokens_is_an_activity_and_what_no_node_has_goes_before() {
        let (mut log, gauge) = (WorkLog::default(), DeviceGauge::default());
        gauge.set_awaited_step(Some(Step(0)));
        assert_eq!(log.activity(&gauge), Some(LongActivity::AwaitingTokens { step: Step(0) }));
        assert_eq!(log.handle_tick(&gauge, false, 0).progress, None, "bytes that come are");
        let hash = Digest([7; 32]);
        log.note_missing(Some(hash));
        assert_eq!(log.activity(&gauge), Some(LongActivity::AwaitingData { hash }));
        log.note_missing(None);
        gauge.set_awaited_step(None);
        assert_eq!(log.activity(&gauge), None);
    }

    #[test]
    fn an_order_gets_on_for_as_long_as_its_bytes_may_take_and_no_longer() {
        let gigabyte = CommandWatch { held: 1 << 30, ..CommandWatch::default() };
        let mut watch = gigabyte;
        let ticks_max = command_ticks_max(1 << 30);
        assert!(ticks_max > 3 * command_ticks_max(1 << 20));
        assert!(!watch.gets_on(2), "none is under way");
        assert!(!watch.gets_on(3), "it has just begun");
        assert!((0..ticks_max).all(|_| watch.gets_on(3)));
        assert!(!watch.gets_on(3), "it hangs");
        assert!(!watch.gets_on(5));
        assert!(watch.gets_on(5), "another one has all of its time");
    }

    #[test]
    fn a_checkpoint_is_an_activity_until_it_is_durable_or_given_up() {
        let mut log = WorkLog::default();
        let writing = |version, done, total| {
            let done = Bytes(done);
            let total = Bytes(total);
            Some(LongActivity::Writing { version: Step(version), done, total })
        };
        log.begin_writing(piece(4, 0));
        log.begin_writing(piece(4, 1));
        log.note_written(piece(3, 0), false);
        log.note_written(piece(4, 1), true);
        assert_eq!(log.activity(&DeviceGauge::default()), writing(4, 10, 20));
        log.note_written(piece(4, 0), true);
        assert_eq!(log.activity(&DeviceGauge::default()), None);
        log.begin_writing(piece(5, 0));
        log.begin_writing(piece(6, 0));
        assert_eq!(log.activity(&DeviceGauge::default()), writing(6, 0, 10), "the newest");
        log.note_written(piece(6, 0), false);
        assert_eq!(log.activity(&DeviceGauge::default()), None);
        log.begin_writing(piece(7, 0));
        log.begin_writing(piece(7, 0));
        log.note_written(piece(7, 0), true);
        assert_eq!(
            log.activity(&DeviceGauge::default()),
            None,
            "it was sealed again under another plan"
        );
    }

    #[test]
    fn an_evaluation_waits_for_what_makes_a_run_last() {
        let mut log = WorkLog::default();
        assert!(!log.update_evaluation_wait(false, false), "steps are trained");
        assert!(!log.update_evaluation_wait(true, false));
        assert!(log.update_evaluation_wait(true, true), "pieces are written, or kept for others");
        assert!(!log.update_evaluation_wait(true, false));
        log.note_export();
        let waits = |log: &mut WorkLog| log.update_evaluation_wait(true, false);
        let waited = (0..3 * EXPORT_TICKS).filter(|_| waits(&mut log)).count();
        assert_eq!(waited as u32, EXPORT_TICKS - 1, "and not for ever for whoever asked last");
        assert_eq!(log.export_waits, u64::from(EXPORT_TICKS) - 1, "the run gets on meanwhile");
        let slow = (0..2 * EXPORT_PATIENCE).filter(|_| {
            log.note_export();
            waits(&mut log)
        });
        let patience = EXPORT_PATIENCE - (EXPORT_TICKS - 1);
        assert_eq!(slow.count() as u32, patience, "nor for a reader that never ends");
        let before = log.export_waits;
        log.update_evaluation_wait(false, false);
        log.note_export();
        log.update_evaluation_wait(false, false);
        assert_eq!(log.export_waits, before, "nobody waits: that others read is no progress");
    }

    #[test]
    fn progress_is_reported_at_once_and_activities_now_and_then_if_they_changed() {
        let gauge = DeviceGauge::default();
        let mut log = WorkLog::default();
        let count = |log: &mut WorkLog, written| {
            let reports = (0..REPORT_TICKS).map(|_| log.handle_tick(&gauge, false, written));
            let reports: Vec<_> = reports.collect();
            let progress: Vec<_> = reports.iter().filter_map(|report| report.progress).collect();
            (progress, reports.iter().filter_map(|report| report.activity).collect::<Vec<_>>())
        };
        assert_eq!(count(&mut log, 7), (vec![7], vec![(7, None)]));
        assert_eq!(count(&mut log, 7), (vec![], vec![]), "nothing is new");
        assert_eq!(count(&mut log, 9), (vec![9], vec![(9, None)]));
    }

    #[test]
    fn the_device_is_reported_busy_when_an_operation_begins_or_ended_and_another_began() {
        let mut log = WorkLog::default();
        let edges = [0, 1, 1, 2, 3, 5, 6];
        let expected = [None, Some(true), None, Some(false), Some(true), Some(true), Some(false)];
        assert_eq!(edges.map(|edges| log.note_edges(edges)), expected);
    }
}
