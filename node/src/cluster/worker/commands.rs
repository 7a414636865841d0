//! Commands of the session: passed on to the device, once it has the text and weights of the job.

use std::sync::Arc;

use zbelastic_checkpoint::CheckpointStore;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::{AdmissionRefusal, Holder};
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{LoadCommand, WorkerCommand, WorkerEvent};
use zbelastic_policy::drain_cause::DrainCause;
use zbelastic_trainer::runtime::RuntimeInput;

use super::WorkerNode;
use super::job::copies_ahead;
use crate::cluster::process_exit::ProcessExit;

impl WorkerNode {
    /// A command of the session: executed once the text and weights of the job are here.
    pub(super) fn execute(&mut self, command: WorkerCommand) {
        if let (WorkerCommand::EndLife | WorkerCommand::Forget, Some(cause)) =
            (&command, self.drain.cause())
        {
            self.log_saved();
            self.ports.exit = Some(ProcessExit::Drained(cause));
            return;
        }
        // A worker that has not begun a job holds no layer of it, and reports that at once: sealed
        // versions are given up on evidence alone (rule R9), so that no worker may be silent.
        if let (WorkerCommand::TakeInventory { index, .. }, None) = (&command, self.job.active()) {
            let index = *index;
            let layers = Vec::new();
            return self.ports.send_to_session(WorkerEvent::Inventory { index, layers });
        }
        // Of one that waits for token stores the device knows which layers it holds.
        if let WorkerCommand::TakeInventory { .. } = command {
            return self.execute_now(command);
        }
        match self.job.hold(command) {
            Ok(Some(command)) => self.execute_now(command),
            Ok(None) => {}
            Err(error) => self.ports.exit = Some(ProcessExit::Lost(error.to_string())),
        }
    }

    /// Logs where this machine's disk has layers of the newest version, before it goes.
    fn log_saved(&mut self) {
        let Some(store) = self.ports.tasks.checkpoint_thread().store() else { return };
        let names = store.names().unwrap_or_default();
        let Some(newest) = names.iter().map(|name| name.version).max() else { return };
        let layers = names.iter().filter(|name| name.version == newest).count();
        let folder = store.folder().display();
        let text =
            format!("pieces of {layers} layers of version {} are in {folder}", newest.version);
        self.ports.journal.log(text);
    }

    /// No request of this process to be admitted will be granted.
    pub(super) fn end_refused(&mut self, refusal: AdmissionRefusal) {
        self.ports.exit = Some(match refusal {
            AdmissionRefusal::Drained => {
                let text = "drained by an operator: what starts this node again brings it back";
                self.ports.journal.log(text.to_owned());
                ProcessExit::Drained(DrainCause::Command)
            }
            AdmissionRefusal::NoCredential => ProcessExit::Removed,
        });
    }

    fn execute_now(&mut self, command: WorkerCommand) {
        if let WorkerCommand::Run { .. } | WorkerCommand::Release | WorkerCommand::Forget = command
        {
            self.pieces.end_loading();
        }
        match command {
            WorkerCommand::Load(load) => self.load(load),
            WorkerCommand::PreCopy { holder: me, pre_copy } => self.precopy(me, pre_copy),
            WorkerCommand::EndLife | WorkerCommand::Forget
                if self.ports.session.has_hung_operation() =>
            {
                self.ports.exit = Some(ProcessExit::Hung);
            }
            WorkerCommand::Run { generation } => {
                self.layers.end_loading(generation);
                self.ports.send_to_device(RuntimeInput::Command(command));
            }
            WorkerCommand::ApplySeal(seal) => {
                self.job.note_sealed(seal.turn.step);
                self.ports.send_to_device(RuntimeInput::Command(command));
            }
            WorkerCommand::EndLife
            | WorkerCommand::Forget
            | WorkerCommand::Stop
            | WorkerCommand::Rewind
            | WorkerCommand::TakeInventory { .. } => {
                self.stop_links();
                self.layers.drop_unfinished();
                self.ports.send_to_device(RuntimeInput::Command(command));
            }
            WorkerCommand::Save { .. } | WorkerCommand::Release => {
                self.ports.send_to_device(RuntimeInput::Command(command));
            }
        }
    }

    fn load(&mut self, load: Box<LoadCommand>) {
        if !self.job.is_ready_for(&load.spec) {
            let spec = load.spec.clone();
            return self.begin_job(&spec, WorkerCommand::Load(load));
        }
        if self.job.lacks_step(&load.plan, self.ports.me, load.turn.step) {
            let ports = (&mut self.ports, self.connections.roster());
            let command = WorkerCommand::Load(load);
            return self.job.await_shards(command, ports, self.data.clone());
        }
        let len = |layer| self.job.layer_len(layer);
        let plan = (&*load.plan, self.ports.me);
        self.ports.work_log.note_load(plan, len, self.ports.device.gauge());
        self.layers.begin_plan(&load.plan, &mut self.ports);
        self.pieces.begin_plan(&load.plan, self.ports.me);
        self.job.set_plan(load.plan.clone(), &mut self.ports);
        self.ports.send_to_device(RuntimeInput::Command(WorkerCommand::Load(load)));
    }

    /// Layers are to be copied ahead, here or from here.
    fn precopy(&mut self, me: Holder, pre_copy: Option<Arc<PreCopyPlan>>) {
        let Some(spec) = self.ports.session.spec().cloned() else { return };
        self.layers.follow_pre_copy(pre_copy.as_deref());
        let command = WorkerCommand::PreCopy { holder: me, pre_copy: pre_copy.clone() };
        if self.job.is_ready_for(&spec) {
            self.job.set_precopy(pre_copy, &mut self.ports);
            self.ports.send_to_device(RuntimeInput::Command(command));
        } else if pre_copy.is_some_and(|pre_copy| copies_ahead(&pre_copy, me)) {
            // A worker without a part in it waits for its plan.
            self.begin_job(&spec, command);
        }
    }

    fn begin_job(&mut self, spec: &JobSpec, command: WorkerCommand) {
        let ports = (&mut self.ports, self.connections.roster());
        self.job.begin(spec, command, ports, self.data.paths.clone());
    }
}
