//! The surroundings of a life's machines: time, the network, the store, the random draws, the
//! conditions that faults still wait for, and the records of the machines.

use std::collections::VecDeque;
use std::sync::Arc;

use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::codec;
use zbelastic_consensus::job::{JobPhase, JobSpec};
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::WorkerEvent;
use zbelastic_islands::ExchangeRun;
use zbelastic_trainer::runtime::{PeerFrame, RuntimeOutput};
use zbelastic_types::{ClusterId, NodeId};

use super::island_folders::LifeIslands;
use super::numbers::NodeNumbers;
use super::program_versions::ProgramVersions;
use super::storm::{ArmedCrashPoint, Storm};
use super::{SimulatedPacket, WorldEvent};
use crate::case::LifeCase;
use crate::check::InvariantChecker;
use crate::crash_points::CrashPoint;
use crate::failure::LifeFailure;
use crate::islands::SimulatedIslands;
use crate::log::EventLog;
use crate::markers::{Marker, Markers};
use crate::network::{NetworkLane, SimulatedNetwork};
use crate::queue::{VirtualTime, VirtualTimeQueue};
use crate::random::{DrawPurpose, Draws};
use crate::store::SimulatedStore;
use crate::ticks::TICK_US;
use crate::work_durations::{BEAT_US, LONG_US_MAX, LongWork};

/// Bytes of a manifest at most.
const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// After so long a requested inventory was once assumed to be lost: 4 times 40 ticks.
const OLD_INVENTORY_US: u64 = 8_000_000;
/// Work of more than this is long beyond doubt.
const HUNDRED_BEATS_US: u64 = 100 * BEAT_US;

/// A worker's process that died in the middle of an input: its connections close behind that.
pub(super) struct CrashedWorker {
    pub(super) node: NodeId,
    pub(super) down_us: u64,
    /// Whether it ran until then.
    pub(super) ran: bool,
    /// Whether a fault killed it.
    pub(super) is_injected: bool,
}

/// The state that all machines share.
pub(super) struct Surroundings<'a> {
    pub(super) case: &'a LifeCase,
    pub(super) now: VirtualTime,
    pub(super) queue: VirtualTimeQueue<WorldEvent>,
    pub(super) network: SimulatedNetwork<SimulatedPacket>,
    pub(super) store: SimulatedStore,
    pub(super) draws_disk: Draws,
    pub(super) draws_work: Draws,
    pub(super) draws_target: Draws,
    pub(super) draws_store: Draws,
    pub(super) draws_pace: Draws,
    pub(super) draws_keepers: Draws,
    pub(super) draws_islands: Draws,
    pub(super) islands: LifeIslands,
    pub(super) programs: ProgramVersions,
    pub(super) numbers: NodeNumbers,
    /// The rest of the time for long work.
    pub(super) long_us_left: u64,
    pub(super) cluster: ClusterId,
    pub(super) storm: Storm,
    pub(super) checker: InvariantChecker,
    pub(super) markers: Markers,
    pub(super) log: &'a mut EventLog,
    pub(super) is_calm: bool,
    /// More happened than anything is promised for.
    pub(super) is_excused: bool,
    pub(super) calm_at: VirtualTime,
    /// The plan of the layers that are copied ahead.
    pub(super) pre_copy: Option<Arc<PreCopyPlan>>,
    /// The index of the last rewind.
    pub(super) rewound_at: u64,
    /// Workers with connections that are still to close, each once: `World::settle` empties it.
    pub(super) crashed: VecDeque<CrashedWorker>,
    /// How often the workers are still to be sent the controllers.
    pub(super) announcements: u32,
    pub(super) failure: Option<LifeFailure>,
}

impl<'a> Surroundings<'a> {
    /// At the beginning of a life.
    pub(super) fn new(
        case: &'a LifeCase,
        (checker, islands): (InvariantChecker, Option<(SimulatedIslands, ExchangeRun)>),
        log: &'a mut EventLog,
    ) -> Self {
        let draws = |purpose| Draws::new(case.seed, purpose);
        Self {
            case,
            now: VirtualTime(0),
            queue: VirtualTimeQueue::default(),
            network: SimulatedNetwork::new(case.options.network, draws(DrawPurpose::Network)),
            store: SimulatedStore::default(),
            draws_disk: draws(DrawPurpose::Disk),
            draws_work: draws(DrawPurpose::Work),
            draws_target: draws(DrawPurpose::Targets),
            draws_store: draws(DrawPurpose::Store),
            draws_pace: draws(DrawPurpose::Pace),
            draws_keepers: draws(DrawPurpose::Keepers),
            draws_islands: draws(DrawPurpose::IslandFolders),
            islands: LifeIslands::new(islands, case.seed),
            programs: ProgramVersions::new(case.seed),
            numbers: NodeNumbers::new(&case.options),
            long_us_left: LONG_US_MAX,
            cluster: ClusterId(case.seed | 1),
            storm: Storm::default(),
            checker,
            markers: Markers::default(),
            log,
            is_calm: false,
            is_excused: false,
            calm_at: VirtualTime(case.options.storm_us),
            pre_copy: None,
            rewound_at: 0,
            crashed: VecDeque::new(),
            announcements: 0,
            failure: None,
        }
    }

    pub(super) fn fail(&mut self, failure: LifeFailure) {
        self.note(|| format!("FAILED {failure}"));
        self.failure.get_or_insert(failure);
    }

    /// A line about a change, if the log has a reader.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.log.line(|| format!("{now} {}", line()));
    }

    pub(super) fn send(
        &mut self,
        from: NodeId,
        to: NodeId,
        lane: NetworkLane,
        packet: SimulatedPacket,
    ) {
        let Self { network, queue, now, .. } = self;
        network.send((*now, from, to), lane, packet, |at, from, packet| {
            queue.push(at, WorldEvent::Packet { from, to, packet });
        });
    }

    pub(super) fn mark(&mut self, marker: Marker) {
        self.markers.hit(marker);
    }

    pub(super) fn draw_tick_us(&mut self) -> u64 {
        let drift = self.case.options.clock_drift;
        let share = self.draws_work.share() * 2.0 - 1.0;
        (TICK_US as f64 * (1.0 + drift * share)) as u64
    }

    /// Whether a process that comes to a point is to die there.
    pub(super) fn hits(&mut self, point: CrashPoint) -> bool {
        let Some(index) = self.storm.armed.iter().position(|armed| armed.point == point) else {
            return false;
        };
        if self.now < self.storm.undisturbed_until {
            return false;
        }
        if self.storm.armed[index].passes > 0 {
            self.storm.armed[index].passes -= 1;
            return false;
        }
        self.storm.armed[index].is_hit = true;
        true
    }

    /// Removes the crash point that was hit, and counts it.
    pub(super) fn disarm(&mut self) -> ArmedCrashPoint {
        let index = self.storm.armed.iter().position(|armed| armed.is_hit);
        let armed = self.storm.armed.remove(index.expect("a crash point was hit"));
        self.storm.crash_points.hit(armed.point);
        self.note(|| format!("dies at {:?}", armed.point));
        armed
    }

    /// The newest checkpoint that can be read to the last byte.
    pub(super) fn newest_manifest(&self) -> Option<(Arc<JobSpec>, CheckpointRecord)> {
        let manifests = self
            .store
            .manifests()
            .filter(|(version, _)| self.checker.is_restorable(&self.store, *version));
        let decode = |(_, bytes): (_, &[u8])| codec::decode(bytes, MANIFEST_BYTES_MAX).ok();
        manifests.into_iter().find_map(decode)
    }

    /// The duration of a piece of work, if it lasts longer than in other lives.
    pub(super) fn long_us(&mut self, work: LongWork) -> Option<u64> {
        let (us, share) = self.case.options.pace?.of(work);
        if us > self.long_us_left || !self.draws_pace.chance(share) {
            return None;
        }
        self.long_us_left -= us;
        Some(us)
    }

    /// The kind and duration of the work that a process does for long before it reports this
    /// output.
    pub(super) fn long_answer(&mut self, output: &RuntimeOutput) -> Option<(LongWork, u64)> {
        let work = match output {
            RuntimeOutput::Event(WorkerEvent::Inventory { .. }) => LongWork::Hash,
            RuntimeOutput::Event(WorkerEvent::Loaded { .. }) => LongWork::Load,
            RuntimeOutput::Event(_)
            | RuntimeOutput::Outer(_)
            | RuntimeOutput::Peer { .. }
            | RuntimeOutput::Read { .. }
            | RuntimeOutput::Write { .. }
            | RuntimeOutput::Evaluated { .. } => return None,
        };
        self.long_us(work).map(|us| (work, us))
    }

    pub(super) fn note_long(&mut self, work: LongWork, us: u64) {
        let is_long = us > HUNDRED_BEATS_US;
        let marker = match work {
            LongWork::Hash => Some(Marker::LateInventory).filter(|_| us > OLD_INVENTORY_US),
            LongWork::Op => Some(Marker::LongOperation).filter(|_| is_long),
            LongWork::Load | LongWork::Serve | LongWork::Read => {
                Some(Marker::LongLoad).filter(|_| is_long)
            }
            LongWork::Write => Some(Marker::LongWrite).filter(|_| is_long),
        };
        if let Some(marker) = marker {
            self.mark(marker);
        }
    }

    /// Something changed for the worse.
    pub(super) fn note_injected(&mut self, phase: Option<JobPhase>) {
        self.storm.faults += 1;
        let is_training = match phase {
            Some(JobPhase::Running | JobPhase::Paused) => true,
            Some(JobPhase::Done | JobPhase::Halted(_) | JobPhase::Stopped) | None => false,
        };
        self.storm.faults_in_training += u64::from(is_training);
    }

    pub(super) fn cut(&mut self, links: Vec<(NodeId, NodeId)>, us: u64) {
        let until = self.now.after(us);
        for (from, to) in &links {
            self.network.cut(*from, *to);
        }
        self.queue.push(until, WorldEvent::HealLinks(links));
    }

    pub(super) fn send_peer(
        &mut self,
        node: NodeId,
        to: NodeId,
        (frame, is_flipped): (PeerFrame, bool),
    ) {
        let packet = SimulatedPacket::Peer { frame: Box::new(frame), is_flipped };
        self.send(node, to, NetworkLane::Tensor, packet);
    }
}
