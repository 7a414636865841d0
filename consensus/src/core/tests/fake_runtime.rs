//! A worker's runtime without a model: what it reports follows from the turn, at once.

use zbelastic_types::{LayerId, StageIndex};

use crate::fixture::{digest, digests, fingerprints, sum};
use crate::message::{HeldLayer, HeldUpdate};
use crate::session::{LoadCommand, WorkerCommand, WorkerEvent};
use crate::state::copied_layers;
use crate::validation::{GradientReport, Seal, TensorSum, Turn};

/// Holds the layers of one plan at one version.
#[derive(Debug, Default)]
pub struct FakeRuntime {
    part: Option<LoadCommand>,
    held: Vec<HeldLayer>,
    is_running: bool,
}

impl FakeRuntime {
    pub fn carry_out(&mut self, command: WorkerCommand) -> Vec<WorkerEvent> {
        match command {
            WorkerCommand::ApplySeal(seal) => self.apply_seal(&seal),
            WorkerCommand::Stop => {
                self.is_running = false;
                Vec::new()
            }
            WorkerCommand::EndLife => {
                self.is_running = false;
                self.part = None;
                Vec::new()
            }
            WorkerCommand::Load(command) => self.load(*command),
            WorkerCommand::Run { .. } => {
                self.is_running = true;
                self.reports()
            }
            WorkerCommand::TakeInventory { index, .. } => {
                vec![WorkerEvent::Inventory { index, layers: self.held.clone() }]
            }
            WorkerCommand::PreCopy { holder, pre_copy } => {
                let followed =
                    pre_copy.iter().flat_map(|plan| plan.followed_by(holder).map(|f| f.layer));
                let layers: Vec<LayerId> = followed.collect();
                let generation = pre_copy.as_ref().map(|plan| plan.generation);
                let generation = generation.filter(|_| !layers.is_empty());
                generation
                    .map(|generation| WorkerEvent::Following { generation, layers })
                    .into_iter()
                    .collect()
            }
            WorkerCommand::Rewind => {
                self.is_running = false;
                self.held.clear();
                Vec::new()
            }
            WorkerCommand::Release => {
                self.held.clear();
                Vec::new()
            }
            WorkerCommand::Save { generation, version } => {
                let part = self.part.as_ref().filter(|part| part.plan.generation == generation);
                let layers =
                    |part: &LoadCommand| part.plan.layers_of(part.stage).collect::<Vec<_>>();
                let layers = digests(part.map(layers).unwrap_or_default(), version.0);
                vec![WorkerEvent::Saved { version, generation, layers, busy_milliticks: 0 }]
            }
            WorkerCommand::Forget => {
                *self = Self::default();
                Vec::new()
            }
        }
    }

    fn load(&mut self, command: LoadCommand) -> Vec<WorkerEvent> {
        let LoadCommand { plan, stage, turn, .. } = &command;
        let (own, copied) = (plan.layers_of(*stage).collect(), copied_layers(plan, *stage));
        let layers = digests(Vec::clone(&own), turn.step.0);
        let copies = digests(copied.iter().copied(), turn.step.0);
        let generation = plan.generation;
        self.hold(&[own, copied].concat(), *turn);
        self.part = Some(command);
        vec![WorkerEvent::Loaded { generation, layers, copies }]
    }

    fn hold(&mut self, layers: &[LayerId], turn: Turn) {
        let version = turn.step;
        let held = |layer: &LayerId| {
            let (layer, digest) = (*layer, digest(layer.0, version.0));
            HeldLayer { layer, version, digest }
        };
        self.held = layers.iter().map(held).collect();
    }

    fn apply_seal(&mut self, seal: &Seal) -> Vec<WorkerEvent> {
        let Some(part) = &mut self.part else { return Vec::new() };
        part.turn = seal.next_turn();
        let (turn, is_checkpoint) = (part.turn, part.spec.checkpoints(part.turn.step));
        let own: Vec<LayerId> = part.plan.layers_of(part.stage).collect();
        let layers: Vec<LayerId> = self.held.iter().map(|held| held.layer).collect();
        self.hold(&layers, turn);
        let (version, generation) = (turn.step, seal.turn.generation);
        let saved = WorkerEvent::Saved {
            version,
            generation,
            layers: digests(own, version.0),
            busy_milliticks: 0,
        };
        let saved = is_checkpoint.then_some(saved);
        saved.into_iter().chain(self.reports()).collect()
    }

    /// What a stage reports of the open turn: its sums, and those of the stages it copies.
    fn reports(&self) -> Vec<WorkerEvent> {
        let Some(part) = self.part.as_ref().filter(|_| self.is_running) else { return Vec::new() };
        let LoadCommand { plan, stage, spec, turn, .. } = part;
        if turn.step.0 >= spec.step_count {
            return Vec::new();
        }
        let state = |of: StageIndex| match spec.attests(turn.step) {
            true => fingerprints(plan.layers_of(of), turn.step.0),
            false => Vec::new(),
        };
        let sums = |of: StageIndex| -> Vec<TensorSum> {
            plan.layers_of(of).map(|layer| sum(layer, 0.01 * f64::from(layer.0 + 1))).collect()
        };
        let is_last = stage.index() + 1 == plan.stages.len();
        let loss_sum = is_last.then_some(2.0 / (1.0 + turn.step.0 as f64));
        let report = GradientReport { turn: *turn, stage: *stage, sums: sums(*stage), loss_sum };
        let held = plan.copied_by(*stage).map(|of| {
            WorkerEvent::UpdateHeld(HeldUpdate {
                turn: *turn,
                of,
                sums: sums(of),
                state: state(of),
            })
        });
        [WorkerEvent::Reported { report, state: state(*stage) }].into_iter().chain(held).collect()
    }
}
