//! Commands of the session: passed on to the device, once it has what the job is built from.

use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{LoadCommand, WorkerCommand, WorkerEvent};
use zbelastic_machine::second_store::SECOND_STORE;
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::{LayerId, NodeId, Step};

use super::{ActiveJob, COMMANDS_HELD_MAX, JobReadiness, WorkerCompletion, WorkerNode};
use crate::cluster::data::{
    DamagedCopy, FetchError, FetchedJob, damaged_text, fetch_data, fetch_job,
};
use crate::cluster::device::{DeviceInput, DeviceJob, StepTime};
use crate::cluster::document::{DataName, JobDocument};
use crate::cluster::frames::FrameExpectations;
use crate::cluster::process_exit::{NodeSignal, ProcessExit};
use crate::cluster::wire::NodeMessage;

impl WorkerNode {
    /// Keeps checkpoints in the folder that the job names, as soon as there is a job.
    pub(super) fn use_store(&mut self) {
        let Some(spec) = self.session.spec().filter(|spec| Some(spec.config) != self.stored_job)
        else {
            return;
        };
        let spec = spec.clone();
        self.stored_job = Some(spec.config);
        // A document that cannot be read is reported when it is to be worked on.
        let Ok(document) = JobDocument::of_job(&spec) else { return };
        let dir = document.job.config.checkpoint.folder.as_deref();
        match self.setup.store_locations.of_job(dir, self.setup.cluster, self.setup.node) {
            Ok(folder) => {
                if self.checkpoint_thread.use_store(folder).is_err() {
                    self.stored_job = None;
                }
            }
            Err(error) => self.journal.warn(format!("checkpoint.dir: {error}")),
        }
    }

    pub(super) fn execute(&mut self, command: WorkerCommand) {
        if let (WorkerCommand::Forget, Some(NodeSignal::Drain(cause))) = (&command, self.drain) {
            self.exit = Some(ProcessExit::Drained(cause));
            return;
        }
        // A worker that has not begun a job holds no layer of it, and reports that at once: sealed
        // versions are given up on evidence alone (rule R9), so that no worker may be silent.
        if let (
            WorkerCommand::TakeInventory { index },
            JobReadiness::Idle | JobReadiness::Fetching(_),
        ) = (&command, &self.readiness)
        {
            let index = *index;
            let layers = Vec::new();
            return self.send_to_session(WorkerEvent::Inventory { index, layers });
        }
        match &mut self.readiness {
            JobReadiness::Fetching(held) if held.len() < COMMANDS_HELD_MAX => {
                held.push_back(command)
            }
            JobReadiness::Fetching(_) => {
                let message = format!("{COMMANDS_HELD_MAX} commands wait for the job's text");
                self.exit = Some(ProcessExit::Lost(message));
            }
            JobReadiness::Idle | JobReadiness::Ready(_) => self.execute_now(command),
        }
    }

    fn execute_now(&mut self, command: WorkerCommand) {
        if let WorkerCommand::ApplySeal(seal) = &command {
            self.newest_sealed = self.newest_sealed.max(seal.turn.step);
        }
        match command {
            WorkerCommand::Load(load) => self.load(load),
            WorkerCommand::PreCopy { holder: me, pre_copy } => self.precopy(me, pre_copy),
            WorkerCommand::Forget if self.session.has_hung_operation() => {
                self.exit = Some(ProcessExit::Hung)
            }
            WorkerCommand::Run { generation } => {
                // All workers are ready: what was offered for this plan has been fetched, and a
                // holder of a layer keeps its owner from writing it in place.
                self.blob_registry.clear_before(generation.next());
                self.send_to_device(RuntimeInput::Command(command));
            }
            WorkerCommand::Forget
            | WorkerCommand::ApplySeal(_)
            | WorkerCommand::Stop
            | WorkerCommand::Save { .. }
            | WorkerCommand::Rewind
            | WorkerCommand::Release
            | WorkerCommand::TakeInventory { .. } => {
                self.send_to_device(RuntimeInput::Command(command))
            }
        }
    }

    fn load(&mut self, load: Box<LoadCommand>) {
        if !self.is_ready_for(&load.spec) {
            let spec = load.spec.clone();
            return self.begin_job(&spec, WorkerCommand::Load(load));
        }
        self.note_held(&load.plan, self.setup.node);
        let JobReadiness::Ready(job) = &mut self.readiness else { return };
        (job.plan, job.precopy) = (Some(load.plan.clone()), None);
        self.blob_registry.clear_before(load.plan.generation);
        self.layers_fetching.clear();
        self.work_log.end_receiving();
        self.expect_frames();
        self.send_to_device(RuntimeInput::Command(WorkerCommand::Load(load)));
    }

    /// Layers are to be copied ahead, here or from here.
    fn precopy(&mut self, me: Holder, pre_copy: Option<Arc<PreCopyPlan>>) {
        let command = WorkerCommand::PreCopy { holder: me, pre_copy: pre_copy.clone() };
        let Some(spec) = self.session.spec().cloned() else { return };
        if !self.is_ready_for(&spec) {
            // A worker without a part in it waits for its plan.
            let is_mine =
                |held: &Arc<PreCopyPlan>| held.layers.iter().any(|follow| follow.follower == me);
            if pre_copy.as_ref().is_some_and(is_mine) {
                self.begin_job(&spec, command);
            }
            return;
        }
        let JobReadiness::Ready(job) = &mut self.readiness else { return };
        job.precopy = pre_copy;
        self.expect_frames();
        self.send_to_device(RuntimeInput::Command(command));
    }

    fn is_ready_for(&self, spec: &JobSpec) -> bool {
        match &self.readiness {
            JobReadiness::Ready(job) => {
                (job.document.run, job.document.name) == (spec.run, spec.config)
            }
            JobReadiness::Idle | JobReadiness::Fetching(_) => false,
        }
    }

    fn expect_frames(&mut self) {
        let JobReadiness::Ready(job) = &self.readiness else { return };
        let config = &job.document.job.config;
        let expected = FrameExpectations {
            me: self.setup.node,
            model: &config.model,
            batch: config.batch,
            plan: job.plan.as_deref(),
            precopy: job.precopy.as_deref(),
        };
        match expected.rules() {
            Ok(rules) => self.transport.set_frame_rules(rules),
            Err(error) => self.exit = Some(ProcessExit::Lost(error.to_string())),
        }
    }

    /// Fetches what the job is built from; commands wait, this one first.
    fn begin_job(&mut self, spec: &JobSpec, command: WorkerCommand) {
        let document = match JobDocument::of_job(spec) {
            Ok(document) => Arc::new(document),
            Err(error) => {
                self.exit = Some(ProcessExit::Lost(error.to_string()));
                return;
            }
        };
        let transport = self.transport.clone();
        let checkpoint_thread = self.checkpoint_thread.clone();
        let holders = self.peers.roster().holders(self.session.contacts());
        let completions = self.completions.clone();
        let local = self.setup.data_paths.clone();
        self.newest_sealed = Step(0);
        self.readiness = JobReadiness::Fetching([command].into());
        tokio::spawn(async move {
            let fetched =
                fetch_job(document, (&transport, &checkpoint_thread), holders, local).await;
            let _ = completions.send(WorkerCompletion::Job(Box::new(fetched))).await;
        });
    }

    pub(super) fn handle_job(&mut self, fetched: Result<FetchedJob, FetchError>) {
        let JobReadiness::Fetching(held) = &mut self.readiness else { return };
        let held = std::mem::take(held);
        self.readiness = JobReadiness::Idle;
        let FetchedJob { document, corpus, weights, damaged } = match fetched {
            Ok(fetched) => fetched,
            // A worker that is planned in and loads nothing is planned out, and planned in again
            // later.
            Err(error) => return self.journal.warn(format!("the job cannot be built: {error}")),
        };
        for DamagedCopy { node, name } in damaged {
            self.journal.warn(damaged_text(node, name));
            self.send_node(node, &NodeMessage::KeepData(name));
        }
        let config = &document.job.config;
        let job = document.clone();
        let specs = model_layers(&config.model);
        let layer_floats = specs.iter().map(LayerSpec::len).collect();
        let scratch = self.setup.identity.with_file_name(SECOND_STORE);
        let job = DeviceJob { document: job, corpus, weights, scratch };
        if let Err(error) = self.device.send(DeviceInput::Begin(Box::new(job))) {
            self.exit = Some(ProcessExit::Lost(error.to_string()));
            return;
        }
        self.readiness =
            JobReadiness::Ready(ActiveJob { document, layer_floats, plan: None, precopy: None });
        held.into_iter().for_each(|command| self.execute(command));
    }

    /// Another node found the copy here of a job's text or weights to be damaged, and has a sound
    /// one.
    pub(super) fn repair_data(&mut self, from: NodeId, name: DataName) {
        self.journal.warn(format!("node {from} found the copy of the text here to be damaged"));
        self.fetch_again(name, vec![from]);
    }

    /// A copy of a text or of weights is damaged here.
    pub(super) fn fetch_again(&self, name: DataName, holders: Vec<NodeId>) {
        let transport = self.transport.clone();
        let checkpoint_thread = self.checkpoint_thread.clone();
        // A sound copy is found to be sound, and stays; what cannot be fetched is reported where it
        // is needed.
        tokio::spawn(async move {
            let _ = fetch_data(name, &transport, &checkpoint_thread, holders).await;
        });
    }

    pub(super) fn report_step_time(&mut self, step: StepTime) {
        let Some((generation, stage)) = self.session.assigned_stage() else { return };
        let span_us = step.span.as_micros() as u64;
        let busy_us = step.busy.as_micros() as u64;
        let waited_us = step.waited.as_micros() as u64;
        let step_time = NodeMessage::Took {
            generation,
            stage,
            span_us,
            busy_us,
            waited_us,
            slices: step.slices,
        };
        self.send_to_controllers(&step_time);
        let arrivals = step.arrivals;
        self.send_to_controllers(&NodeMessage::Arrived { generation, stage, arrivals });
        if let Some((turn, times)) = step.layers {
            self.send_to_controllers(&NodeMessage::LayersTook { turn, stage, times });
        }
    }

    /// Floats in each part of a layer, if there is a job.
    pub(super) fn layer_floats(&self, layer: LayerId) -> Option<usize> {
        match &self.readiness {
            JobReadiness::Ready(job) => job.layer_floats.get(layer.index()).copied(),
            JobReadiness::Idle | JobReadiness::Fetching(_) => None,
        }
    }
}
