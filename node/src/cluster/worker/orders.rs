//! What the seat orders: passed on to the device, once it has what the job is built from.

use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::rehearsal::Rehearsal;
use zbelastic_consensus::seat::{LoadOrder, News, Order};
use zbelastic_trainer::host::HostInput;
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_types::{LayerId, NodeId, Step};

use super::{Arrived, JobHere, ORDERS_HELD_MAX, Readiness, Worker};
use crate::cluster::data::{
    DamagedCopy, FetchError, Fetched, damaged_words, fetch_data, fetch_job,
};
use crate::cluster::device::{DeviceInput, DeviceJob, StepTime};
use crate::cluster::document::{DataName, JobDocument};
use crate::cluster::ending::{Ending, Signal};
use crate::cluster::frames::Expected;
use crate::cluster::wire::NodeMessage;
use crate::second_store::SECOND_STORE;

impl Worker {
    /// Keeps checkpoints in the folder that the job names, as soon as there is a job.
    pub(super) fn use_store(&mut self) {
        let Some(spec) = self.seat.spec().filter(|spec| Some(spec.config) != self.stored) else {
            return;
        };
        let spec = spec.clone();
        self.stored = Some(spec.config);
        // A document that cannot be read is reported when it is to be worked on.
        let Ok(document) = JobDocument::of_job(&spec) else { return };
        let dir = document.job.config.checkpoint.folder.as_deref();
        match self.setup.places.of_job(dir, self.setup.cluster, self.setup.node) {
            Ok(folder) => {
                if self.keeper.use_store(folder).is_err() {
                    self.stored = None;
                }
            }
            Err(error) => self.journal.warn(format!("checkpoint.dir: {error}")),
        }
    }

    pub(super) fn carry_out(&mut self, order: Order) {
        if let (Order::Forget, Some(Signal::Drain(cause))) = (&order, self.drain) {
            self.ending = Some(Ending::Drained(cause));
            return;
        }
        // A worker that has not begun a job holds no layer of it, and reports that at once: sealed versions
        // are given up on evidence alone (rule R9), so that no worker may be silent.
        if let (Order::TakeInventory { index }, Readiness::Idle | Readiness::Fetching(_)) =
            (&order, &self.readiness)
        {
            let (index, layers) = (*index, Vec::new());
            return self.tell_seat(News::Inventory { index, layers });
        }
        match &mut self.readiness {
            Readiness::Fetching(held) if held.len() < ORDERS_HELD_MAX => held.push_back(order),
            Readiness::Fetching(_) => {
                let what = format!("{ORDERS_HELD_MAX} orders wait for the job's text");
                self.ending = Some(Ending::Lost(what));
            }
            Readiness::Idle | Readiness::Ready(_) => self.carry_out_now(order),
        }
    }

    fn carry_out_now(&mut self, order: Order) {
        if let Order::Settle(seal) = &order {
            self.newest = self.newest.max(seal.turn.step);
        }
        match order {
            Order::Load(load) => self.load(load),
            Order::Rehearse { me, rehearsal } => self.rehearse(me, rehearsal),
            Order::Forget if self.seat.has_hung_operation() => self.ending = Some(Ending::Hung),
            Order::Run { generation } => {
                // All workers are ready: what was offered for this plan has been fetched, and a holder of a
                // layer keeps its owner from writing it in place.
                self.shelf.clear_before(generation.next());
                self.tell_device(HostInput::Order(order));
            }
            Order::Forget
            | Order::Settle(_)
            | Order::Stop
            | Order::Save { .. }
            | Order::GoBack
            | Order::Release
            | Order::TakeInventory { .. } => self.tell_device(HostInput::Order(order)),
        }
    }

    fn load(&mut self, load: Box<LoadOrder>) {
        if !self.is_ready_for(&load.spec) {
            let spec = load.spec.clone();
            return self.begin_job(&spec, Order::Load(load));
        }
        self.note_held(&load.plan, self.setup.node);
        let Readiness::Ready(job) = &mut self.readiness else { return };
        (job.plan, job.rehearsal) = (Some(load.plan.clone()), None);
        self.shelf.clear_before(load.plan.generation);
        self.arriving.clear();
        self.work.end_receiving();
        self.expect_frames();
        self.tell_device(HostInput::Order(Order::Load(load)));
    }

    /// Layers are to be copied ahead, here or from here.
    fn rehearse(&mut self, me: Holder, rehearsal: Option<Arc<Rehearsal>>) {
        let order = Order::Rehearse { me, rehearsal: rehearsal.clone() };
        let Some(spec) = self.seat.spec().cloned() else { return };
        if !self.is_ready_for(&spec) {
            // Who has nothing to do with it waits for its plan.
            let is_mine =
                |held: &Arc<Rehearsal>| held.follows.iter().any(|follow| follow.follower == me);
            if rehearsal.as_ref().is_some_and(is_mine) {
                self.begin_job(&spec, order);
            }
            return;
        }
        let Readiness::Ready(job) = &mut self.readiness else { return };
        job.rehearsal = rehearsal;
        self.expect_frames();
        self.tell_device(HostInput::Order(order));
    }

    fn is_ready_for(&self, spec: &JobSpec) -> bool {
        match &self.readiness {
            Readiness::Ready(job) => {
                (job.document.run, job.document.name) == (spec.run, spec.config)
            }
            Readiness::Idle | Readiness::Fetching(_) => false,
        }
    }

    fn expect_frames(&mut self) {
        let Readiness::Ready(job) = &self.readiness else { return };
        let config = &job.document.job.config;
        let expected = Expected {
            me: self.setup.node,
            model: &config.model,
            batch: config.batch,
            plan: job.plan.as_deref(),
            rehearsal: job.rehearsal.as_deref(),
        };
        match expected.rules() {
            Ok(rules) => self.transport.expect(rules),
            Err(error) => self.ending = Some(Ending::Lost(error.to_string())),
        }
    }

    /// Fetches what the job is built from; orders wait, this one first.
    fn begin_job(&mut self, spec: &JobSpec, order: Order) {
        let document = match JobDocument::of_job(spec) {
            Ok(document) => Arc::new(document),
            Err(error) => {
                self.ending = Some(Ending::Lost(error.to_string()));
                return;
            }
        };
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        let (holders, arrivals) =
            (self.peers.roster().holders(self.seat.contacts()), self.arrivals.clone());
        let local = self.setup.data_paths.clone();
        self.newest = Step(0);
        self.readiness = Readiness::Fetching([order].into());
        tokio::spawn(async move {
            let fetched = fetch_job(document, (&transport, &keeper), holders, local).await;
            let _ = arrivals.send(Arrived::Job(Box::new(fetched))).await;
        });
    }

    pub(super) fn handle_job(&mut self, fetched: Result<Fetched, FetchError>) {
        let Readiness::Fetching(held) = &mut self.readiness else { return };
        let held = std::mem::take(held);
        self.readiness = Readiness::Idle;
        let Fetched { document, corpus, weights, damaged } = match fetched {
            Ok(fetched) => fetched,
            // A worker that is planned in and loads nothing is planned out, and planned in again later.
            Err(error) => return self.journal.warn(format!("the job cannot be built: {error}")),
        };
        for DamagedCopy { node, name } in damaged {
            self.journal.warn(damaged_words(node, name));
            self.send_node(node, &NodeMessage::KeepData(name));
        }
        let (config, job) = (&document.job.config, document.clone());
        let specs = model_layers(&config.model);
        let layer_floats = specs.iter().map(LayerSpec::len).collect();
        let scratch = self.setup.identity.with_file_name(SECOND_STORE);
        let job = DeviceJob { document: job, corpus, weights, scratch };
        if let Err(error) = self.device.tell(DeviceInput::Begin(Box::new(job))) {
            self.ending = Some(Ending::Lost(error.to_string()));
            return;
        }
        self.readiness =
            Readiness::Ready(JobHere { document, layer_floats, plan: None, rehearsal: None });
        held.into_iter().for_each(|order| self.carry_out(order));
    }

    /// Another node found the copy here of a job's text or weights to be damaged, and has a sound one.
    pub(super) fn mend_data(&mut self, from: NodeId, name: DataName) {
        self.journal.warn(format!("node {from} found the copy of the text here to be damaged"));
        self.fetch_again(name, vec![from]);
    }

    /// A copy of a text or of weights is damaged here.
    pub(super) fn fetch_again(&self, name: DataName, holders: Vec<NodeId>) {
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        // A sound copy is found to be sound, and stays; what cannot be fetched is reported where it is
        // needed.
        tokio::spawn(async move {
            let _ = fetch_data(name, &transport, &keeper, holders).await;
        });
    }

    pub(super) fn tell_step_time(&mut self, step: StepTime) {
        let Some((generation, stage)) = self.seat.place() else { return };
        let span_us = step.span.as_micros() as u64;
        let busy_us = step.busy.as_micros() as u64;
        let waited_us = step.waited.as_micros() as u64;
        let took = NodeMessage::Took {
            generation,
            stage,
            span_us,
            busy_us,
            waited_us,
            slices: step.slices,
        };
        self.tell_controllers(&took);
        let arrivals = step.arrivals;
        self.tell_controllers(&NodeMessage::Arrived { generation, stage, arrivals });
        if let Some((turn, times)) = step.layers {
            self.tell_controllers(&NodeMessage::LayersTook { turn, stage, times });
        }
    }

    /// Floats in each part of a layer, if there is a job.
    pub(super) fn layer_floats(&self, layer: LayerId) -> Option<usize> {
        match &self.readiness {
            Readiness::Ready(job) => job.layer_floats.get(layer.index()).copied(),
            Readiness::Idle | Readiness::Fetching(_) => None,
        }
    }
}
