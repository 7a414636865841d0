//! What the seat orders: passed on to the device, once it has what the job is built from.

use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::seat::{LoadOrder, Order};
use zbelastic_trainer::host::HostInput;
use zbelastic_trainer::model::model_layers;
use zbelastic_types::LayerId;

use super::{Arrived, JobHere, ORDERS_HELD_MAX, Readiness, Worker};
use crate::cluster::data::{FetchError, Fetched, fetch_job};
use crate::cluster::device::{DeviceInput, DeviceJob, StepTime};
use crate::cluster::document::JobDocument;
use crate::cluster::ending::{Ending, Signal};
use crate::cluster::wire::{NodeMessage, frame_rules, layer_bytes};

impl Worker {
    pub(super) fn carry_out(&mut self, order: Order) {
        if let (Order::Forget, Some(Signal::Drain(cause))) = (&order, self.drain) {
            self.ending = Some(Ending::Drained(cause));
            return;
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
        match order {
            Order::Load(load) => self.load(load),
            Order::Forget if self.is_hung() => self.ending = Some(Ending::Hung),
            Order::Forget
            | Order::Settle(_)
            | Order::Stop
            | Order::Run { .. }
            | Order::GoBack
            | Order::Release
            | Order::TakeInventory { .. } => self.tell_device(HostInput::Order(order)),
        }
    }

    /// Whether the operation under way has been since the last tick. Nothing ends one that hangs
    /// but the end of its process, and who is fenced off has nothing to lose by that.
    fn is_hung(&self) -> bool {
        let edges = self.device.gauge().edges();
        !edges.is_multiple_of(2) && edges == self.gauge_seen
    }

    fn load(&mut self, load: Box<LoadOrder>) {
        let job = match &self.readiness {
            Readiness::Ready(job) if job.document.name == load.spec.config => job,
            Readiness::Ready(_) | Readiness::Idle | Readiness::Fetching(_) => {
                return self.begin_job(load);
            }
        };
        let config = &job.document.job.config;
        match frame_rules(&load.plan, self.setup.node, &config.model, config.batch) {
            Ok(rules) => self.transport.expect(rules),
            Err(error) => return self.ending = Some(Ending::Lost(error.to_string())),
        }
        self.shelf.clear_before(load.plan.generation);
        self.arriving.clear();
        self.tell_device(HostInput::Order(Order::Load(load)));
    }

    /// Fetches what the job is built from; orders wait, this one first.
    fn begin_job(&mut self, load: Box<LoadOrder>) {
        let document = match JobDocument::of_job(&load.spec) {
            Ok(document) => Arc::new(document),
            Err(error) => {
                self.ending = Some(Ending::Lost(error.to_string()));
                return;
            }
        };
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        let (holders, arrivals) = (self.peers.holders(self.seat.contacts()), self.arrivals.clone());
        self.readiness = Readiness::Fetching([Order::Load(load)].into());
        tokio::spawn(async move {
            let fetched = fetch_job(document, &transport, &keeper, holders).await;
            let _ = arrivals.send(Arrived::Job(Box::new(fetched))).await;
        });
    }

    pub(super) fn handle_job(&mut self, fetched: Result<Fetched, FetchError>) {
        let Readiness::Fetching(held) = &mut self.readiness else { return };
        let held = std::mem::take(held);
        self.readiness = Readiness::Idle;
        let Fetched { document, corpus, weights } = match fetched {
            Ok(fetched) => fetched,
            // Whoever is planned in and loads nothing is planned out, and asked again later.
            Err(error) => return self.journal.log(format!("the job cannot be built: {error}")),
        };
        let Some(plan) = held.iter().find_map(plan_of) else { return };
        let threads = self.setup.threads;
        let (config, job) = (&document.job.config, document.clone());
        let specs = model_layers(&config.model);
        let layer_bytes = specs.iter().map(layer_bytes).collect();
        let job = DeviceJob { document: job, corpus, weights, plan, threads };
        if let Err(error) = self.device.tell(DeviceInput::Begin(Box::new(job))) {
            self.ending = Some(Ending::Lost(error.to_string()));
            return;
        }
        self.readiness = Readiness::Ready(JobHere { document, layer_bytes });
        held.into_iter().for_each(|order| self.carry_out(order));
    }

    pub(super) fn tell_step_time(&mut self, step: StepTime) {
        let Some((generation, stage)) = self.seat.place() else { return };
        let span_us = step.span.as_micros() as u64;
        let busy_us = step.busy.as_micros() as u64;
        let waited_us = step.waited.as_micros() as u64;
        let took = NodeMessage::Took { generation, stage, span_us, busy_us, waited_us };
        self.tell_controllers(&took);
    }

    /// Bytes of a layer as it travels, if there is a job.
    pub(super) fn layer_length(&self, layer: LayerId) -> Option<u64> {
        match &self.readiness {
            Readiness::Ready(job) => job.layer_bytes.get(layer.index()).copied(),
            Readiness::Idle | Readiness::Fetching(_) => None,
        }
    }
}

fn plan_of(order: &Order) -> Option<Arc<PlanRecord>> {
    match order {
        Order::Load(load) => Some(load.plan.clone()),
        Order::Settle(_)
        | Order::Stop
        | Order::Run { .. }
        | Order::GoBack
        | Order::Release
        | Order::TakeInventory { .. }
        | Order::Forget => None,
    }
}
