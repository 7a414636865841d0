//! The machines of a life, and the processes that run on them.

use std::collections::{BTreeSet, VecDeque};

use zbelastic_consensus::core::Core;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::message::HeldLayer;
use zbelastic_consensus::raft::PersistToken;
use zbelastic_consensus::session::{WorkerCommand, WorkerSession};
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::Program;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::runtime::{RuntimeInput, RuntimeOutput, WorkerRuntime};
use zbelastic_types::{ClusterId, Generation, LayerId, NodeId, Step};

use super::planning;
use crate::crash_points::CrashPoint;
use crate::disk::MachineDisk;
use crate::numeric_faults::NumericFaults;
use crate::planning::LifePlanner;
use crate::queue::VirtualTime;

/// The machine of a controller.
pub(super) struct ControllerMachine {
    pub(super) life: u64,
    pub(super) core: Option<Core>,
    /// The planner of its process.
    pub(super) planner: LifePlanner,
    /// The plan of the steps that its process sees sealed, and how many it has seen.
    pub(super) plan_steps: (Generation, u64),
    pub(super) disk: MachineDisk,
    pub(super) paused_until: VirtualTime,
    pub(super) tick_us: u64,
    /// Syncs follow each other. A record that is written before one begins is covered by it.
    pub(super) sync_begins_at: VirtualTime,
    pub(super) synced_at: VirtualTime,
    /// The turn for which stages have reported to it, and those stages.
    pub(super) reports: Option<(Turn, BTreeSet<Holder>)>,
    /// A seal that was agreed on while it led, and that was sent to no worker.
    pub(super) unsent_seal: Option<Turn>,
    /// Writes that are not durable yet, in order: the token to report, and the record after the
    /// last.
    pub(super) unsynced: VecDeque<(PersistToken, u64)>,
    pub(super) sync_us_extra: u64,
    pub(super) started_at: VirtualTime,
    /// How it was started first, until something of that is durable.
    pub(super) first: Option<Box<(Vec<NodeId>, State)>>,
    pub(super) election_ticks: u32,
    /// Its disk cannot be used any more: it comes back as another node.
    pub(super) is_condemned: bool,
    /// It is to go, and counts as gone.
    pub(super) is_retiring: bool,
    /// One that was never admitted has nothing to come back to.
    pub(super) was_admitted: bool,
}

impl ControllerMachine {
    /// The moment at which a record that is written now will be durable.
    pub(super) fn sync_end(&mut self, now: VirtualTime, sync_us: u64) -> VirtualTime {
        if self.sync_begins_at <= now {
            self.sync_begins_at = self.synced_at.max(now);
            self.synced_at = self.sync_begins_at.after(sync_us + self.sync_us_extra);
        }
        self.synced_at
    }

    /// Whether a report, the first of its stage to this leader for the open turn, is one of several
    /// that came, or the last of all.
    pub(super) fn report_point(&mut self, holder: Holder, turn: Turn) -> Option<CrashPoint> {
        let core = self.core.as_ref().filter(|core| core.duties().is_some())?;
        let stages = &core.state().plan()?.record.stages;
        if core.state().open_turn() != turn || !stages.contains(&holder) {
            return None;
        }
        let reports = self.reports.take_if(|(of, _)| *of == turn);
        let reports = reports.unwrap_or_else(|| (turn, BTreeSet::new()));
        let (_, holders) = self.reports.insert(reports);
        if !holders.insert(holder) {
            return None;
        }
        let is_last = holders.len() == stages.len();
        Some(if is_last { CrashPoint::BeforePropose } else { CrashPoint::StatsPartial })
    }
}

/// The machine of a worker.
pub(super) struct WorkerMachine<M: StageFactory, S> {
    pub(super) life: u64,
    pub(super) boot: u64,
    pub(super) process: Option<WorkerProcess<M, S>>,
    pub(super) paused_until: VirtualTime,
    pub(super) tick_us: u64,
    pub(super) slow_factor: u64,
    pub(super) slow_until: VirtualTime,
    pub(super) hangs_next: bool,
    pub(super) faults: NumericFaults,
    pub(super) is_gone: bool,
    /// When its process ended, if none runs.
    pub(super) down_since: VirtualTime,
}

/// The process that runs on a worker's machine.
pub(super) struct WorkerProcess<M: StageFactory, S> {
    pub(super) session: WorkerSession,
    pub(super) runtime: WorkerRuntime<M, S>,
    /// The operation in progress, with its result.
    pub(super) busy: Option<(u64, Vec<RuntimeOutput>)>,
    pub(super) backlog: Vec<RuntimeInput>,
    pub(super) op_number: u64,
    /// The durations of its passes, of the last turns.
    pub(super) pass_times: planning::PassTimes,
    /// The operation in progress never ends.
    pub(super) is_hung: bool,
    /// The work it has done, and the transfers that it makes at the moment.
    pub(super) done: u64,
    pub(super) transfers: u32,
    /// The inventories that are due, by the briefing that requested each: none of another cluster's.
    pub(super) inventories_due: BTreeSet<u64>,
    /// The layers that it last reported to hold, and the time of that report.
    pub(super) reported_inventory: Option<(VirtualTime, Vec<HeldLayer>)>,
    /// The turn and the step that the checker looked at last.
    pub(super) checked: Option<(Turn, Step)>,
    /// Layers that it was sent with a flipped bit.
    pub(super) flipped_layers: BTreeSet<LayerId>,
    /// State that only a known bug looks at.
    pub(super) last_program: Option<Program>,
}

impl<M: StageFactory, S> WorkerProcess<M, S> {
    /// Whether it is a member of this cluster, and has forgotten the one before.
    pub(super) fn is_of(&self, cluster: ClusterId) -> bool {
        let forgets =
            |input: &RuntimeInput| matches!(input, RuntimeInput::Command(WorkerCommand::Forget));
        self.session.cluster() == cluster && !self.backlog.iter().any(forgets)
    }
}
