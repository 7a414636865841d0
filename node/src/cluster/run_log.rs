//! What is reported of a run, from what was agreed: events, the line of a step, what a failure
//! cost. Pure but for the time, which is an argument; nothing is decided by it.

use std::time::{Duration, Instant};

use zbelastic_consensus::duty::least_moved;
use zbelastic_consensus::job::JobPhase;
use zbelastic_consensus::member::{LossReason, MemberChange, Role};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::state::{State, StateChange};
use zbelastic_consensus::validation::{Seal, Turn};
use zbelastic_schedule::Window;
use zbelastic_trainer::model::{LayerSpec, LayerTimes};
use zbelastic_trainer::plan::Plan;
use zbelastic_types::{Bytes, Generation, NodeId, RunId, StageIndex, Step, TensorIndex};
use zbelastic_wire::document::NamedJob;
use zbelastic_wire::layer_bytes;

use zbelastic_api::{EventKind, FailureLog, FailureStatus, HexDigest, MemberRole, VerdictWait};
use zbelastic_api::{reason_text, rewind_text};
use zbelastic_timing::checkpoint_times::CheckpointTimes;
use zbelastic_timing::layer_moves::LayerMoves;
use zbelastic_timing::run_pace::RunPace;
use zbelastic_timing::step_timings::StepTimings;
use zbelastic_timing::{BubbleShares, MeasuredSlice, MessageArrival};
use zbelastic_wording::figures::tokens_per_s;

/// What is reported of a run: its pace, failures, checkpoints and plans.
#[derive(Debug, Default)]
pub struct RunLog {
    job: Option<RunFacts>,
    pace: RunPace,
    failures: FailureLog,
    checkpoint_times: CheckpointTimes,
    /// The last seal that advanced the run.
    last: Option<Seal>,
    step_timings: StepTimings,
    generation: Generation,
    /// The plan that was adopted last.
    plan: Option<PlanRecord>,
    /// The plan before it: reports of its stages may arrive late.
    plan_before: Option<PlanRecord>,
    /// The fewest bytes that had to move for the plan in force.
    bytes_floor: Bytes,
    /// The layers that workers fetched, by plan.
    layer_moves: LayerMoves,
    held_out: Option<(u64, f64)>,
    /// Verdicts by which the open step is run again.
    replays: u32,
}

/// The facts of a job that events and status need.
#[derive(Debug)]
struct RunFacts {
    tokens: u64,
    step_count: u64,
    layer_bytes: Vec<u64>,
    tensor_names: Vec<String>,
    job: NamedJob,
}

impl RunLog {
    /// A job is under way, or another one.
    pub fn set_job(&mut self, job: NamedJob) {
        if self
            .job
            .as_ref()
            .is_some_and(|facts| (facts.job.run, facts.job.name) == (job.run, job.name))
        {
            return;
        }
        let config = &job.job.config;
        let specs = zbelastic_trainer::model::model_layers(&config.model);
        let facts = RunFacts {
            tokens: config.batch.tokens(),
            step_count: config.steps,
            layer_bytes: specs.iter().map(layer_bytes).collect(),
            tensor_names: (specs.iter().flat_map(LayerSpec::own_tensors))
                .map(|t| t.name.clone())
                .collect(),
            job,
        };
        *self = Self { job: Some(facts), ..Self::default() };
    }

    /// The job that the run log is about.
    #[must_use]
    pub fn job(&self) -> Option<&NamedJob> {
        self.job.as_ref().map(|facts| &facts.job)
    }

    /// The run, and bytes of each of its layers as it travels.
    #[must_use]
    pub fn layers_of_run(&self) -> Option<(RunId, &[u64])> {
        self.job.as_ref().map(|facts| (facts.job.run, facts.layer_bytes.as_slice()))
    }

    /// Bytes of one copy of a checkpoint.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> Bytes {
        Bytes(self.job.as_ref().map_or(0, |facts| facts.layer_bytes.iter().sum()))
    }

    /// The last seal of the run.
    #[must_use]
    pub const fn last(&self) -> Option<&Seal> {
        self.last.as_ref()
    }

    /// The mean loss of a seal, in nats a token, if it is finite.
    #[must_use]
    pub fn loss(&self, seal: &Seal) -> Option<f64> {
        let facts = self.job.as_ref()?;
        Some(seal.loss_sum() / facts.tokens as f64).filter(|loss| loss.is_finite())
    }

    /// The learning rate of a step.
    #[must_use]
    pub fn lr(&self, step: Step) -> Option<f64> {
        let facts = self.job.as_ref()?;
        Some(facts.job.job.config.optimizer.lr_at(step, facts.step_count))
    }

    /// The time from seal to seal, as the median of the last ones.
    #[must_use]
    pub fn step_time(&self) -> Option<Duration> {
        self.pace.step_time()
    }

    /// Tokens a second over the last seals.
    #[must_use]
    pub fn speed(&self) -> Option<f64> {
        let facts = self.job.as_ref()?;
        let (count, total) = self.pace.steps();
        (count > 0).then(|| tokens_per_s(facts.tokens * count, total))
    }

    /// The time left, at the pace of the last seals.
    #[must_use]
    pub fn time_left(&self, sealed: u64) -> Option<Duration> {
        let facts = self.job.as_ref()?;
        let left = facts.step_count.saturating_sub(sealed);
        Some(self.step_time()? * u32::try_from(left).ok()?)
    }

    /// Failures, the newest last.
    #[must_use]
    pub fn failures(&self) -> Vec<FailureStatus> {
        self.failures.statuses()
    }

    /// How long verdicts were waited for lately.
    #[must_use]
    pub fn verdict_wait(&self) -> Option<VerdictWait> {
        let waits = self.pace.verdict_waits()?;
        let (p50_ms, max_ms) = (milliseconds(waits.median), milliseconds(waits.longest));
        Some(VerdictWait { p50_ms, max_ms, steps: waits.count })
    }

    /// The share of a step in which the busiest stage waited.
    #[must_use]
    pub fn bubble(&self) -> Option<f64> {
        self.pace.bubble()
    }

    /// A stage reported how it spent its last step.
    pub fn note_stage_time(
        &mut self,
        (generation, stage): (Generation, StageIndex),
        times_us: (u64, u64),
        waited_us: u64,
    ) {
        if generation == self.generation {
            self.pace.note_stage(stage, times_us, Duration::from_micros(waited_us));
        }
    }

    /// A stage reported its slices of a step.
    pub fn note_stage_slices(&mut self, of: (Generation, StageIndex), slices: Vec<MeasuredSlice>) {
        self.step_timings.record(of, slices);
    }

    /// A stage reported its arrivals of a step.
    pub fn note_arrivals(&mut self, of: (Generation, StageIndex), arrivals: &[MessageArrival]) {
        self.step_timings.record_arrivals(of, arrivals);
    }

    /// A stage reported what its layers took up to its report of a turn.
    pub fn note_layers(&mut self, of: (Turn, StageIndex), times: LayerTimes) {
        self.step_timings.record_layers(of, times);
    }

    /// The times of the steps of the plan in force, and what is planned for it.
    #[must_use]
    pub const fn timings(&self) -> &StepTimings {
        &self.step_timings
    }

    /// From the last seal before the plan in force to when it ran.
    #[must_use]
    pub const fn last_pause(&self) -> Option<Duration> {
        self.pace.last_pause()
    }

    /// Whether a node computes the loss: it has the head under the plan in force, or had it under
    /// the one before.
    #[must_use]
    pub fn had_head(&self, node: NodeId) -> bool {
        self.plan.iter().chain(&self.plan_before).any(|plan| plan.has_head(node))
    }

    /// The loss on held-out text, which may be reported twice at a change of plans. Yields the event
    /// to record if it is new.
    pub fn note_held_out(&mut self, steps_done: u64, loss: f64) -> Option<EventKind> {
        let is_new = self.held_out.is_none_or(|(steps, _)| steps != steps_done);
        self.held_out = Some((steps_done, loss));
        let loss = Some(loss).filter(|loss| loss.is_finite());
        is_new.then_some(EventKind::HeldOut { step: steps_done, loss })
    }

    /// A worker reported that a layer arrived for a plan, and how long it was on its way.
    pub fn note_moved(&mut self, plan: Generation, bytes: u64, duration: Duration, now: Instant) {
        self.layer_moves.note(plan, bytes, duration, now);
    }

    /// When a checkpoint became durable, in milliseconds since 1970.
    #[must_use]
    pub fn checkpoint_time(&self, version: Step) -> Option<u64> {
        self.checkpoint_times.durable_ms(version)
    }

    /// The events to report of an entry that was applied.
    pub fn note_change(
        &mut self,
        change: &StateChange,
        state: &State,
        (now, now_ms): (Instant, u64),
    ) -> Vec<EventKind> {
        match change {
            StateChange::Members(changes) => {
                changes.iter().filter_map(|c| self.note_member(c, state, (now, now_ms))).collect()
            }
            StateChange::Adopted(plan) => self.note_plan(plan, state, now),
            StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Removed { .. } => Vec::new(),
            StateChange::Resumed(generation) => self.note_resumed(*generation, now),
            StateChange::Sealed { seal, adopted, .. } => {
                let mut events = self.note_seal(seal, state, now);
                events.extend(adopted.iter().flat_map(|plan| self.note_plan(plan, state, now)));
                events
            }
            StateChange::Checkpoint { version, dropped } => {
                let took = self.checkpoint_times.note_durable(*version, dropped, (now, now_ms));
                let ms = took.map(milliseconds);
                let step = version.0;
                let bytes = self.checkpoint_bytes();
                let mut events = vec![EventKind::Checkpoint { step, bytes, ms }];
                // Only now the state can be named, and the model be exported.
                if Some(step) == self.job.as_ref().map(|facts| facts.step_count) {
                    events.push(EventKind::Done { step, digest: None });
                }
                events
            }
            StateChange::Rewound { to, reason, .. } => {
                self.checkpoint_times.clear_due();
                // Steps behind `to` are computed again.
                let sealed = self.last.map_or(0, |seal| seal.turn.step.next().0);
                self.failures.note_steps_lost(sealed.saturating_sub(to.0));
                vec![EventKind::Rewound { to_step: to.0, reason: rewind_text(*reason) }]
            }
            StateChange::Job { phase, .. } => self.note_job(*phase, state),
            StateChange::Access(_) => Vec::new(),
            StateChange::Format(format) => {
                vec![EventKind::FormatRaised { format: format.number() }]
            }
        }
    }

    fn note_job(&mut self, phase: JobPhase, state: &State) -> Vec<EventKind> {
        let step = state.open_turn().step.0;
        let Some(job) = state.job() else { return Vec::new() };
        let first = job.spec.from.map_or(0, |from| from.version.0);
        vec![match phase {
            JobPhase::Running if step == first && state.plan().is_none() => EventKind::RunStarted {
                config: HexDigest(job.spec.config),
                step,
                step_count: job.spec.step_count,
            },
            JobPhase::Running => EventKind::Resumed { step },
            JobPhase::Paused => EventKind::Paused { step },
            JobPhase::Stopped => EventKind::Stopped { step },
            JobPhase::Done => EventKind::Done { step, digest: None },
            JobPhase::Halted(reason) => EventKind::Halted { step, reason: reason.to_string() },
        }]
    }

    fn note_member(
        &mut self,
        change: &MemberChange,
        state: &State,
        (now, now_ms): (Instant, u64),
    ) -> Option<EventKind> {
        match change {
            MemberChange::Admit { node, role, contact, .. } => Some(EventKind::Joined {
                node: *node,
                name: contact.name.clone(),
                role: member_role(*role),
            }),
            MemberChange::Drain { holder } => {
                let node = holder.node;
                Some(EventKind::Draining { node, name: name_of(state, node), reason: None })
            }
            MemberChange::Moved { .. } => None,
            MemberChange::Lost { holder, reason } => {
                let node = holder.node;
                let name = name_of(state, holder.node);
                let is_at_stage = state.plan().is_some_and(|p| p.record.stages.contains(holder));
                let detected_ms = detected_ms(*reason);
                let reason = reason.to_string();
                if is_at_stage {
                    let lost = (node, name.clone(), reason.clone());
                    let failure = FailureStatus::new(now_ms, lost, detected_ms);
                    self.failures.note(failure, now);
                }
                Some(EventKind::Lost { node, name, reason, detected_ms })
            }
        }
    }

    fn note_plan(&mut self, plan: &PlanRecord, state: &State, now: Instant) -> Vec<EventKind> {
        let before = self.plan.replace(plan.clone());
        let least = before.as_ref().zip(state.running_spec());
        let least = least.map_or(0, |(before, spec)| least_moved(before, plan, spec));
        let rerouted = before.as_ref().is_some_and(|before| plan.reroutes(before));
        self.plan_before = before;
        self.bytes_floor = Bytes(least);
        self.generation = plan.generation;
        self.pace.note_plan(now);
        if let Some(facts) = &self.job {
            let config = &facts.job.job.config;
            let plan_of_record = Plan::of_record(plan, config.batch, config.memory.recomputed());
            let job = config.planner_job().ok();
            self.step_timings.begin(config.stage_setup(plan_of_record), plan, job.as_ref());
        }
        self.failures.note_plan(plan.generation, self.bytes_floor);
        vec![EventKind::Plan {
            generation: plan.generation.0,
            stages: plan.cells().map(|holder| holder.node).collect(),
            replicas: plan.program.placement.column_count(),
            rerouted,
            schedule: plan.program.kind.name().to_owned(),
            window: window_number(plan.window()),
            reason: plan.reason.with_names(|node| name_of(state, node)),
        }]
    }

    fn note_resumed(&mut self, now_runs: Generation, now: Instant) -> Vec<EventKind> {
        let moved = self.layer_moves.of(now_runs);
        self.failures.note_resumed(now_runs, moved);
        let pause = self.pace.note_resumed(now);
        vec![EventKind::Running {
            generation: now_runs.0,
            layers_moved: moved.layers,
            bytes_moved: Bytes(moved.bytes),
            bytes_floor: self.bytes_floor,
            moved_ms: moved.time().map(milliseconds),
            pause_ms: pause.map(milliseconds),
        }]
    }

    fn note_seal(&mut self, seal: &Seal, state: &State, now: Instant) -> Vec<EventKind> {
        if !seal.verdict.is_final() {
            self.replays += 1;
            return vec![self.rollback(seal)];
        }
        let step_time = self.pace.note_seal(now);
        self.last = Some(*seal);
        self.failures.note_seal(now);
        let version = seal.turn.step.next();
        if state.job().is_some_and(|job| job.spec.checkpoints(version)) {
            self.checkpoint_times.note_due(version, now);
        }
        let mut events = Vec::new();
        if seal.verdict.coefficient().is_none() {
            events.push(self.rollback(seal));
        }
        let bubbles = self.step_timings.end_step(seal.turn);
        events.push(self.step(seal, (step_time.unwrap_or_default(), bubbles), state));
        self.replays = 0;
        events
    }

    fn rollback(&self, seal: &Seal) -> EventKind {
        let names = self.job.as_ref().map_or(&[][..], |facts| &facts.tensor_names);
        let name = |tensor: TensorIndex| {
            names.get(tensor.index()).cloned().unwrap_or_else(|| format!("tensor {}", tensor.0))
        };
        EventKind::Rollback {
            step: seal.turn.step.next().0,
            verdict: seal.verdict.name().to_owned(),
            reason: reason_text(&seal.reason, &name),
        }
    }

    fn step(
        &self,
        seal: &Seal,
        (step_time, bubbles): (Duration, Option<BubbleShares>),
        state: &State,
    ) -> EventKind {
        let step = seal.turn.step.next().0;
        let (step_count, tokens) =
            self.job.as_ref().map_or((0, 0), |facts| (facts.step_count, facts.tokens));
        EventKind::Step {
            step,
            step_count,
            loss: self.loss(seal),
            gnorm: Some(seal.norm()).filter(|norm| norm.is_finite()),
            verdict: seal.verdict.name().to_owned(),
            clip: seal.verdict.coefficient().map(f64::from),
            lr: self.lr(seal.turn.step).unwrap_or(0.0),
            ms: milliseconds(step_time),
            tokens_per_s: if step_time.is_zero() { 0.0 } else { tokens_per_s(tokens, step_time) },
            attempts: self.replays + 1,
            bubble: bubbles.map(|bubbles| bubbles.measured).or_else(|| self.bubble()),
            bubble_planned: bubbles.map(|bubbles| bubbles.planned),
            causes: bubbles.and_then(|bubbles| bubbles.causes),
            generation: seal.turn.generation.0,
            stages: state.plan().map_or(0, |plan| plan.record.stages.len() as u32),
            eta_s: self.time_left(step).map(|left| left.as_secs_f64()),
        }
    }
}

/// From the last sign of life to the decision, as far as the reason holds it.
fn detected_ms(reason: LossReason) -> Option<f64> {
    let tick_ms = zbelastic_policy::tick::TICK.as_secs_f64() * 1e3;
    match reason {
        LossReason::Silent { ticks }
        | LossReason::OpOverdue { ticks, .. }
        | LossReason::NoProgress { ticks } => Some(f64::from(ticks) * tick_ms),
        LossReason::Closed
        | LossReason::Superseded
        | LossReason::Drained
        | LossReason::Untrusted { .. }
        | LossReason::Removed
        | LossReason::OutOfMemory => None,
    }
}

/// The name of a member, as events give it.
#[must_use]
pub fn name_of(state: &State, node: NodeId) -> String {
    let member = state.members().get(&node);
    member.map_or_else(|| format!("node-{node}"), |member| member.contact.name.clone())
}

/// A member's role as the API names it.
#[must_use]
pub const fn member_role(role: Role) -> MemberRole {
    match role {
        Role::Controller => MemberRole::Controller,
        Role::Worker => MemberRole::Worker,
    }
}

/// Steps that run ahead.
#[must_use]
pub const fn window_number(window: Option<Window>) -> u32 {
    match window {
        Some(Window::One) => 1,
        Some(Window::Zero) | None => 0,
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
