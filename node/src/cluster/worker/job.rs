//! The job that a worker has a part in: its text and weights are fetched before the device gets its
//! commands.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::WorkerCommand;
use zbelastic_data::training_data::TrainingData;
use zbelastic_policy::held_commands::{drop_superseded, needs_data};
use zbelastic_policy::roster::Roster;
use zbelastic_trainer::elastic::{StateLen, image_bytes};
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_types::{ClusterId, Digest, LayerId, NodeId, RunId, Step};
use zbelastic_wire::NodeMessage;
use zbelastic_wire::document::{DataName, JobDocument, NamedJob};
use zbelastic_wire::frames::FrameExpectations;
use zbelastic_wire::job_store::reads_tokens;

use super::ports::{WorkerCompletion, WorkerPorts, WorkerTasks};
use crate::cluster::data::{DamagedCopy, FetchError, FetchedJob, damaged_text, fetch_job};
use crate::cluster::device::{DeviceInput, DeviceJob};
use crate::cluster::kept_data::{DataRoute, keep_data};
use crate::cluster::process_exit::ProcessExit;
use crate::cluster::shard_fetch::{RoundOutcome, ShardFetch, ShardRound};
use zbelastic_config::NoticePolicy;
use zbelastic_kernels::Precision;
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_machine::device_links::LinkPlan;
use zbelastic_machine::second_store::SECOND_STORE;
use zbelastic_node_folder::stores::StoreLocations;
use zbelastic_policy::WorkCounter;

/// Commands held back while a job's text is fetched. A session gives a handful for each plan;
/// beyond this the plan they belong to is long over.
const COMMANDS_HELD_MAX: usize = 256;

/// Time until data that no node has is requested again, with what was fetched beside it read again: whoever
/// uploads the data waits so long for the run to go on.
const REQUEST_AGAIN: Duration = Duration::from_secs(5);

/// Time until a fetch of shards that is ahead of the steps looks again how far they are: it is ahead by
/// as many as take longer.
const LOOK_AHEAD: Duration = Duration::from_millis(200);

/// The job with its text and weights, which are here. Shards of token stores arrive once a stage of
/// this node reads tokens.
pub(super) struct ActiveJob {
    pub(super) document: Arc<NamedJob>,
    /// What is trained on, as the device reads it.
    corpus: Arc<TrainingData>,
    /// Commands that wait until all is here that their first step reads of its stores.
    awaiting_shards: Option<VecDeque<WorkerCommand>>,
    /// Floats of each layer's state.
    layer_lens: Vec<StateLen>,
    /// The plan that was loaded last.
    plan: Option<Arc<PlanRecord>>,
    /// The layers that are copied ahead.
    precopy: Option<Arc<PreCopyPlan>>,
}

impl ActiveJob {
    /// Bytes of each layer as it travels.
    pub(super) fn layer_bytes(&self) -> Vec<u64> {
        self.layer_lens.iter().map(|len| image_bytes(*len)).collect()
    }

    /// Pieces of a checkpoint that other nodes are to have beside this one.
    pub(super) fn copies(&self) -> usize {
        self.document.job.config.checkpoint.copies as usize
    }

    /// The type of products' factors.
    pub(super) fn precision(&self) -> Precision {
        self.document.job.config.arithmetic.precision()
    }

    /// The version after the last step.
    pub(super) fn last_version(&self) -> Step {
        Step(self.document.job.config.steps)
    }
}

/// Whether the job's text and weights are here.
#[derive(Default)]
enum JobReadiness {
    /// No plan needs text or weights yet.
    #[default]
    Idle,
    /// Text and weights are fetched; commands wait.
    Fetching(VecDeque<WorkerCommand>),
    Ready(ActiveJob),
}

/// Too many commands wait for a job's text.
#[derive(Debug, thiserror::Error)]
#[error("{COMMANDS_HELD_MAX} commands wait for the job's text")]
pub(super) struct TooManyCommands;

/// The job of a worker, and the newest version of it that this node knows to be sealed.
#[derive(Default)]
pub(super) struct WorkerJob {
    readiness: JobReadiness,
    newest_sealed: Step,
}

impl WorkerJob {
    /// The job, if its text and weights are here.
    pub(super) const fn active(&self) -> Option<&ActiveJob> {
        match &self.readiness {
            JobReadiness::Ready(job) => Some(job),
            JobReadiness::Idle | JobReadiness::Fetching(_) => None,
        }
    }

    const fn active_mut(&mut self) -> Option<&mut ActiveJob> {
        match &mut self.readiness {
            JobReadiness::Ready(job) => Some(job),
            JobReadiness::Idle | JobReadiness::Fetching(_) => None,
        }
    }

    /// The run that is loaded here.
    pub(super) fn run(&self) -> Option<RunId> {
        self.active().map(|job| job.document.run)
    }

    /// The job's text and weights.
    pub(super) fn data(&self) -> Vec<DataName> {
        self.active().map_or_else(Vec::new, |job| job.document.job.data())
    }

    /// Floats of a layer's state, if there is a job.
    pub(super) fn layer_len(&self, layer: LayerId) -> Option<StateLen> {
        self.active()?.layer_lens.get(layer.index()).copied()
    }

    /// The reaction to a notice of the cloud.
    pub(super) fn notice_policy(&self) -> NoticePolicy {
        let policy = self.active().map(|job| job.document.job.config.elastic.on_notice);
        policy.unwrap_or(NoticePolicy::Drain)
    }

    /// The newest version that this node knows to be sealed.
    pub(super) const fn newest_sealed(&self) -> Step {
        self.newest_sealed
    }

    /// A version is known to be sealed.
    pub(super) fn note_sealed(&mut self, version: Step) {
        self.newest_sealed = self.newest_sealed.max(version);
    }

    /// Whether this job is the one with text and weights that are here.
    pub(super) fn is_ready_for(&self, spec: &JobSpec) -> bool {
        let of = |job: &ActiveJob| (job.document.run, job.document.name);
        self.active().is_some_and(|job| of(job) == (spec.run, spec.config))
    }

    /// Whether the node's stage of a plan reads tokens in a step that are not here.
    pub(super) fn lacks_step(&self, plan: &PlanRecord, me: NodeId, step: Step) -> bool {
        let Some(job) = self.active() else { return false };
        let TrainingData::Stores(mixture) = &*job.corpus else { return false };
        let config = &job.document.job.config;
        // Behind the last step nothing is read but held-out text, which the stage waits for.
        let is_read = step.0 < config.steps;
        let step = config.run_steps().batch_step(step.0);
        mixture.demand(step);
        reads_tokens(plan, me, config.tokens.packing)
            && (mixture.stores().is_empty() || is_read && !mixture.holds_step(step))
    }

    /// Holds a command back while the job's text or what its first step reads is fetched. Yields it if
    /// neither is.
    ///
    /// # Errors
    /// If too many wait.
    pub(super) fn hold(
        &mut self,
        command: WorkerCommand,
    ) -> Result<Option<WorkerCommand>, TooManyCommands> {
        let held = match &mut self.readiness {
            JobReadiness::Fetching(held) => held,
            JobReadiness::Ready(ActiveJob { awaiting_shards: Some(held), .. }) => held,
            JobReadiness::Idle | JobReadiness::Ready(_) => return Ok(Some(command)),
        };
        if held.len() >= COMMANDS_HELD_MAX {
            drop_superseded(held);
        }
        if held.len() >= COMMANDS_HELD_MAX {
            return Err(TooManyCommands);
        }
        held.push_back(command);
        Ok(None)
    }

    /// Fetches the text and weights of the job; commands wait, this one first.
    pub(super) fn begin(
        &mut self,
        spec: &JobSpec,
        command: WorkerCommand,
        (ports, roster): (&mut WorkerPorts, &Roster),
        local: Vec<String>,
    ) {
        let document = match JobDocument::of_job(spec) {
            Ok(document) => Arc::new(document),
            Err(error) => {
                ports.exit = Some(ProcessExit::Lost(error.to_string()));
                return;
            }
        };
        let holders = ports.holders(roster);
        let route = route(holders, ports.work_log.pieces().clone(), &ports.tasks);
        self.newest_sealed = Step(0);
        self.readiness = JobReadiness::Fetching([command].into());
        ports.tasks.spawn(async move {
            let fetched = fetch_job(document, &route, local).await;
            WorkerCompletion::Job(Box::new(fetched))
        });
    }

    /// The text and weights of the job were fetched, or not. Yields the commands that waited for
    /// it.
    pub(super) fn handle_fetched(
        &mut self,
        fetched: Result<FetchedJob, FetchError>,
        (ports, identity): (&mut WorkerPorts, &Path),
    ) -> VecDeque<WorkerCommand> {
        let JobReadiness::Fetching(held) = &mut self.readiness else { return VecDeque::new() };
        if request_later(fetched.as_ref().err(), ports) {
            return VecDeque::new();
        }
        let held = std::mem::take(held);
        self.readiness = JobReadiness::Idle;
        let FetchedJob { document, corpus, weights, damaged } = match fetched {
            Ok(fetched) => fetched,
            // A worker that is planned in and loads nothing is planned out, and planned in again
            // later.
            Err(error) => {
                ports.journal.warn(format!("the job cannot be built: {error}"));
                return VecDeque::new();
            }
        };
        report_damaged(damaged, ports);
        let specs = model_layers(&document.job.config.model);
        let layer_lens = specs.iter().map(LayerSpec::state_len).collect();
        let scratch = identity.with_file_name(SECOND_STORE);
        let job =
            DeviceJob { document: document.clone(), corpus: corpus.clone(), weights, scratch };
        if !ports.enqueue(DeviceInput::Begin(Box::new(job))) {
            return VecDeque::new();
        }
        let active = ActiveJob {
            document,
            corpus,
            awaiting_shards: None,
            layer_lens,
            plan: None,
            precopy: None,
        };
        self.readiness = JobReadiness::Ready(active);
        held
    }

    /// A command waits for what its first step reads of the job's stores, and others behind it. The
    /// fetch of their shards begins unless it is under way.
    pub(super) fn await_shards(
        &mut self,
        command: WorkerCommand,
        ports: (&mut WorkerPorts, &Roster),
        local: DataSettings,
    ) {
        let Some(job) = self.active_mut() else { return };
        job.awaiting_shards = Some([command].into());
        if matches!(&*job.corpus, TrainingData::Stores(mixture) if mixture.stores().is_empty()) {
            match ShardFetch::begin(job.document.clone(), job.corpus.clone(), local) {
                Ok(fetch) => {
                    let text = "the shards of its token stores are fetched";
                    ports.0.journal.log(text.to_owned());
                    spawn_round(fetch, ports, Duration::ZERO);
                }
                Err(error) => ports.0.exit = Some(ProcessExit::Lost(error.to_string())),
            }
        }
    }

    /// A round of the fetch of shards is over. The next one follows unless all are here, or the job is
    /// over. Yields the commands that waited: one whose step still lacks something waits again.
    pub(super) fn handle_round(
        &mut self,
        round: ShardRound,
        (ports, roster): (&mut WorkerPorts, &Roster),
    ) -> VecDeque<WorkerCommand> {
        let ShardRound { mut fetch, damaged, outcome } = round;
        let Some(job) = self.active_mut().filter(|job| fetch.is_of(&job.corpus)) else {
            return VecDeque::new();
        };
        let mut held = job.awaiting_shards.take().unwrap_or_default();
        drop_superseded(&mut held);
        report_damaged(damaged, ports);
        let failure = outcome.as_ref().err();
        report_damaged(failure.map(FetchError::damaged).unwrap_or_default(), ports);
        if fetch.note_failure(failure.map(ToString::to_string)) {
            let why = failure.expect("it failed");
            ports.journal.warn(format!("shards of its token stores: {why}"));
        }
        // What no node has is missed once a step waits for it.
        let is_awaited = !held.is_empty() || ports.device.gauge().awaited_step().is_some();
        let missing = failure.and_then(FetchError::missing).filter(|_| is_awaited);
        ports.work_log.note_missing(missing);
        let pause = match outcome {
            Ok(RoundOutcome::Whole) => {
                ports.journal.log("all shards of its token stores are here".to_owned());
                return held;
            }
            Ok(RoundOutcome::Fetched) => Duration::ZERO,
            Ok(RoundOutcome::Ahead) => LOOK_AHEAD,
            Err(_) => REQUEST_AGAIN,
        };
        spawn_round(fetch, (ports, roster), pause);
        held
    }

    /// Data that no node had is requested again, by the first of the commands that waited for it, if
    /// one of them still needs it.
    pub(super) fn take_held(&mut self, ports: &mut WorkerPorts) -> VecDeque<WorkerCommand> {
        let JobReadiness::Fetching(held) = &mut self.readiness else { return VecDeque::new() };
        let mut held = std::mem::take(held);
        self.readiness = JobReadiness::Idle;
        drop_superseded(&mut held);
        if !needs_data(&held) {
            ports.work_log.note_missing(None);
        }
        held
    }

    /// A plan is loaded: frames of it are expected from now on, and those of the plan before are no
    /// longer sent to workers that were not connected.
    pub(super) fn set_plan(&mut self, plan: Arc<PlanRecord>, ports: &mut WorkerPorts) {
        let Some(job) = self.active_mut() else { return };
        if let Some(links) = ports.device.links() {
            let config = &job.document.job.config;
            let len_max = config.batch.microbatch.rows() * config.model.width as usize;
            let link_plan = LinkPlan { generation: plan.generation, len_max: len_max as u32 };
            match plan.stages.iter().find(|holder| holder.node == ports.me) {
                Some(me) => links.begin_plan(link_plan, *me),
                None => links.stop(),
            }
        }
        let generation = plan.generation;
        job.plan = Some(plan);
        job.precopy = None;
        ports.device.begin_plan(generation);
        ports.tasks.transport().discard_held_frames();
        self.expect_frames(ports);
    }

    /// Layers are copied ahead, here or from here: their updates are expected from now on.
    pub(super) fn set_precopy(
        &mut self,
        precopy: Option<Arc<PreCopyPlan>>,
        ports: &mut WorkerPorts,
    ) {
        let Some(job) = self.active_mut() else { return };
        job.precopy = precopy;
        self.expect_frames(ports);
    }

    fn expect_frames(&self, ports: &mut WorkerPorts) {
        let Some(job) = self.active() else { return };
        let config = &job.document.job.config;
        let expected = FrameExpectations {
            me: ports.me,
            model: &config.model,
            batch: config.batch,
            plan: job.plan.as_deref(),
            precopy: job.precopy.as_deref(),
        };
        match expected.rules() {
            Ok(rules) => ports.tasks.transport().set_frame_rules(rules),
            Err(error) => ports.exit = Some(ProcessExit::Lost(error.to_string())),
        }
    }
}

/// Where a worker keeps checkpoints: the folder that its job names.
pub(super) struct JobStore {
    cluster: ClusterId,
    locations: StoreLocations,
    /// The job of the store that is used.
    job: Option<Digest>,
}

impl JobStore {
    pub(super) const fn new(cluster: ClusterId, locations: StoreLocations) -> Self {
        Self { cluster, locations, job: None }
    }

    /// Keeps checkpoints in the folder that the job names, as soon as there is a job.
    pub(super) fn follow_job(&mut self, ports: &mut WorkerPorts) {
        let spec = ports.session.spec().filter(|spec| Some(spec.config) != self.job);
        let Some(spec) = spec.cloned() else { return };
        self.job = Some(spec.config);
        // A document that cannot be read is reported when it is to be worked on.
        let Ok(document) = JobDocument::of_job(&spec) else { return };
        let dir = document.job.config.checkpoint.folder.as_deref();
        match self.locations.of_job(dir, self.cluster, ports.me) {
            Ok(folder) => {
                if ports.tasks.checkpoint_thread().use_store(folder).is_err() {
                    self.job = None;
                }
            }
            Err(error) => ports.journal.warn(format!("checkpoint.dir: {error}")),
        }
    }
}

/// Whether a worker copies layers ahead.
pub(super) fn copies_ahead(pre_copy: &PreCopyPlan, me: Holder) -> bool {
    pre_copy.layers.iter().any(|follow| follow.follower == me)
}

/// A copy of a text or of weights is damaged here: it is fetched again. Yields whether that
/// begins now: it may be under way.
pub(super) fn fetch_again(name: DataName, holders: Vec<NodeId>, ports: &mut WorkerPorts) -> bool {
    if !ports.data_fetches.begin(name, &holders) {
        return false;
    }
    let route = route(holders, WorkCounter::default(), &ports.tasks);
    // A sound copy is found to be sound, and stays; a copy that cannot be fetched is reported where
    // it is needed.
    ports.tasks.spawn(async move {
        WorkerCompletion::FetchedAgain(name, keep_data(name, &route).await.is_ok())
    });
    true
}

/// Fetches the shards that are read next, behind a pause.
fn spawn_round(fetch: ShardFetch, (ports, roster): (&mut WorkerPorts, &Roster), pause: Duration) {
    let holders = ports.holders(roster);
    let route = route(holders, ports.work_log.pieces().clone(), &ports.tasks);
    ports.tasks.spawn(async move {
        tokio::time::sleep(pause).await;
        WorkerCompletion::Shards(Box::new(fetch.run_round(&route).await))
    });
}

fn route(holders: Vec<NodeId>, progress: WorkCounter, tasks: &WorkerTasks) -> DataRoute {
    let transport = tasks.transport().clone();
    let checkpoint_thread = tasks.checkpoint_thread().clone();
    DataRoute { transport, checkpoint_thread, holders, progress }
}

/// Whether data could not be had that no node has. Then it is requested again later: without it no other
/// worker would train either.
fn request_later(error: Option<&FetchError>, ports: &mut WorkerPorts) -> bool {
    let missing = error.and_then(FetchError::missing);
    let is_news = ports.work_log.note_missing(missing);
    let Some(error) = error.filter(|_| missing.is_some()) else { return false };
    if is_news {
        ports.journal.warn(format!("data of the job is missing: {error}"));
    }
    // A copy that is whole nowhere is not taken for one that is there when it is uploaded again.
    report_damaged(error.damaged(), ports);
    ports.tasks.spawn(async {
        tokio::time::sleep(REQUEST_AGAIN).await;
        WorkerCompletion::RequestData
    });
    true
}

/// Nodes with damaged copies are to fetch them again.
fn report_damaged(damaged: Vec<DamagedCopy>, ports: &mut WorkerPorts) {
    for DamagedCopy { node, name } in damaged {
        ports.journal.warn(damaged_text(node, name));
        ports.outbox.send(node, NodeMessage::KeepData(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_wait_while_a_job_is_fetched_and_pass_otherwise() {
        let mut job = WorkerJob::default();
        assert!(job.hold(WorkerCommand::Stop).is_ok_and(|command| command.is_some()));
        job.readiness = JobReadiness::Fetching(VecDeque::new());
        for _ in 0..COMMANDS_HELD_MAX {
            assert!(job.hold(WorkerCommand::Stop).is_ok_and(|command| command.is_none()));
        }
        assert!(job.hold(WorkerCommand::Rewind).is_ok(), "plans that were ended are dropped");
        for _ in 1..COMMANDS_HELD_MAX {
            assert!(job.hold(WorkerCommand::Rewind).is_ok());
        }
        assert!(job.hold(WorkerCommand::Rewind).is_err(), "their plan is long over");
        assert!(job.active().is_none());
    }

    #[test]
    fn the_newest_sealed_version_never_goes_back() {
        let mut job = WorkerJob::default();
        job.note_sealed(Step(7));
        job.note_sealed(Step(3));
        assert_eq!(job.newest_sealed(), Step(7));
    }
}
