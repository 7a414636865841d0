//! A leader without a log: what it proposes is agreed at once.

use std::collections::BTreeSet;

use zbelastic_schedule::Window;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use crate::duty::{
    Duties, DutyTiming, InputRefusal, LeaderAction, NoPlan, PlanNeed, PlanUnsolvable, SolveRequest,
};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, digest, fingerprints, solution, sum};
use crate::job::JobSpec;
use crate::member::Holder;
use crate::message::{HeldLayer, HeldUpdate, WorkerActivity};
use crate::plan::PlanRecord;
use crate::validation::{GradientReport, LayerFingerprint, TensorSum};

pub const TIMING: DutyTiming = DutyTiming {
    // Not what the job sets: where there is one, its number counts.
    lost_after_ticks: 17,
    progress_ticks: 40,
    inventory_ticks: 8,
};

pub struct DutiesHarness {
    pub log: FixtureLog,
    pub duties: Duties,
    pub solve_request: Option<SolveRequest>,
    pub requests_inventory: bool,
    pub given_up: Vec<NoPlan>,
    /// Whether workers that are to follow layers report at once that they do.
    pub follows: bool,
    /// The version of which second replicas' states are reported, if not that of the open step.
    pub twin_version: Option<u64>,
    /// The count of work in each heartbeat.
    pub progress: u64,
}

impl DutiesHarness {
    /// A leader elected just now.
    pub fn new(log: FixtureLog) -> Self {
        let duties = Duties::new(&log.state, TIMING);
        Self {
            log,
            duties,
            solve_request: None,
            requests_inventory: false,
            given_up: Vec::new(),
            follows: true,
            twin_version: None,
            progress: 0,
        }
    }

    pub fn running(spec: JobSpec, nodes: &[u64]) -> Self {
        Self::new(FixtureLog::running(spec, nodes))
    }

    /// Another leader takes over.
    pub fn elect_anew(&mut self) {
        self.duties = Duties::new(&self.log.state, TIMING);
        (self.solve_request, self.requests_inventory) = (None, false);
    }

    pub fn decide(&mut self) -> Option<LeaderAction> {
        self.duties.decide(&self.log.state)
    }

    /// An entry is agreed: the leader's own, or one that was under way before.
    pub fn agree(&mut self, entry: Entry) {
        let result = self.log.try_apply(entry.clone());
        let (state, index) = (&self.log.state, self.log.state.applied());
        self.duties.on_applied(state, index, &entry, result.as_ref().map(|_| ()));
    }

    /// Does everything that is due. What was proposed.
    pub fn act(&mut self) -> Vec<Entry> {
        const ACTIONS_MAX: usize = 50;
        let mut proposed = Vec::new();
        for _ in 0..ACTIONS_MAX {
            match self.decide() {
                None => return proposed,
                Some(LeaderAction::Solve(request)) => self.solve_request = Some(request),
                Some(LeaderAction::RequestInventory) => self.requests_inventory = true,
                Some(LeaderAction::SendPreCopy) if self.follows => self.follow_all(),
                Some(LeaderAction::SendPreCopy) => {}
                Some(LeaderAction::ReportNoPlan(none)) => self.given_up.push(none),
                Some(LeaderAction::Propose(entry)) => {
                    self.duties.on_proposed(self.log.state.applied() + 1, &entry);
                    self.agree(entry.clone());
                    proposed.push(entry);
                }
            }
        }
        panic!("there is no end of it: {proposed:#?}");
    }

    /// All workers that are to follow layers report that they do.
    pub fn follow_all(&mut self) {
        let pre_copy = self.duties.pre_copy().cloned().expect("something is to be followed");
        let followers: BTreeSet<Holder> = pre_copy.layers.iter().map(|f| f.follower).collect();
        for holder in followers {
            let layers = pre_copy.followed_by(holder).map(|followed| followed.layer).collect();
            self.follow(holder, layers);
        }
    }

    /// A worker reports that it follows these layers, and no others.
    pub fn follow(&mut self, holder: Holder, layers: Vec<LayerId>) {
        let (state, generation) = (&self.log.state, self.plan().generation);
        let result = self.duties.handle_following(state, holder, generation, layers);
        result.expect("it was requested to");
    }

    /// Ticks, all of these nodes beating in each.
    pub fn tick(&mut self, count: u32, beating: &[u64]) {
        for _ in 0..count {
            beating.iter().for_each(|node| self.beat(*node, 0, 0));
            self.duties.handle_tick(&self.log.state);
        }
    }

    pub fn beat(&mut self, node: u64, busy_ticks: u32, wait_ticks: u32) {
        let holder = self.log.holder(node);
        let pulse = WorkerActivity { busy_ticks, wait_ticks, progress: self.progress };
        self.duties.handle_beat(&self.log.state, holder, pulse).expect("it is a member");
    }

    /// Ticks, all of these nodes beating in each, and having done some more.
    pub fn work(&mut self, count: u32, working: &[u64]) {
        for _ in 0..count {
            self.progress += 1;
            self.tick(1, working);
        }
    }

    pub fn need(&self) -> Option<PlanNeed> {
        self.duties.need(&self.log.state)
    }

    pub fn plan(&self) -> &PlanRecord {
        &self.log.state.plan().expect("there is a plan").record
    }

    /// The sums of a stage; `scale` other than 1 makes them differ.
    pub fn sums(&self, stage: usize, scale: f64) -> Vec<TensorSum> {
        let layers = self.plan().layers_of(StageIndex(stage as u32));
        layers.map(|layer| sum(layer, scale * 0.01 * f64::from(layer.0 + 1))).collect()
    }

    fn attested(&self, stage: usize, version: u64) -> Vec<LayerFingerprint> {
        fingerprints(self.plan().layers_of(StageIndex(stage as u32)), version)
    }

    /// The node at a stage reports its sums of the open turn.
    pub fn try_report(&mut self, stage: usize, scale: f64) -> Result<(), InputRefusal> {
        let turn = self.log.state.open_turn();
        let sums = self.sums(stage, scale);
        let is_last = stage + 1 == self.plan().stages.len();
        let loss_sum = is_last.then_some(2.0);
        let report = GradientReport { turn, stage: StageIndex(stage as u32), sums, loss_sum };
        let (holder, mut attested) = (self.plan().stages[stage], self.attested(stage, turn.step.0));
        let twins = self.plan().twins_at(StageIndex(stage as u32));
        attested.extend(fingerprints(twins, self.twin_version.unwrap_or(turn.step.0)));
        self.duties.handle_report(&self.log.state, holder, &report, attested)
    }

    pub fn report(&mut self, stage: usize) {
        self.try_report(stage, 1.0).expect("it is counted");
    }

    /// The keepers of a stage's copies hold the update, with these sums and that state.
    pub fn hold_with(&mut self, of: usize, scale: f64, version: u64) {
        let holders: Vec<Holder> = self.plan().copy_holders(StageIndex(of as u32)).collect();
        assert!(!holders.is_empty(), "somebody keeps it");
        holders.into_iter().for_each(|holder| self.hold_at(holder, of, scale, version));
    }

    /// One keeper of a stage's copies holds the update.
    pub fn hold_at(&mut self, holder: Holder, of: usize, scale: f64, version: u64) {
        let turn = self.log.state.open_turn();
        let (sums, state) = (self.sums(of, scale), self.attested(of, version));
        let of = StageIndex(of as u32);
        let update = HeldUpdate { turn, of, sums, state };
        self.duties.handle_held(&self.log.state, holder, update).expect("it is counted");
    }

    pub fn hold(&mut self, of: usize) {
        self.hold_with(of, 1.0, self.log.state.open_turn().step.0);
    }

    /// Everything that a step needs.
    pub fn report_all(&mut self) {
        let has_copies = self.plan().promise.is_given();
        for stage in 0..self.plan().stages.len() {
            self.report(stage);
            if has_copies {
                self.hold(stage);
            }
        }
    }

    /// The plan that was requested is found.
    pub fn solve(&mut self) {
        let SolveRequest { number, nodes, window, .. } =
            self.solve_request.take().expect("one was asked for");
        let solution = solution(nodes.len() as u32, window);
        assert!(self.duties.handle_solution(number, Ok(solution)), "it is wanted");
    }

    pub fn solve_not(&mut self) {
        let SolveRequest { number, nodes, .. } =
            self.solve_request.take().expect("one was asked for");
        let unsolvable = PlanUnsolvable { nodes: nodes.len(), reason: "too large".to_owned() };
        assert!(self.duties.handle_solution(number, Err(unsolvable)), "it is wanted");
    }

    /// A node reports which layers it holds at a version.
    pub fn report_held(&mut self, node: u64, layers: &[u32], version: u64) {
        let held = |layer: &u32| HeldLayer {
            layer: zbelastic_types::LayerId(*layer),
            version: Step(version),
            digest: digest(*layer, version),
        };
        let layers = layers.iter().map(held).collect();
        let (holder, index) = (self.log.holder(node), self.log.state.applied());
        let result = self.duties.handle_inventory(&self.log.state, holder, index, layers);
        result.expect("it was requested");
    }

    /// A plan that is needed now comes about: all nodes hold everything, and are ready.
    pub fn replan_now(&mut self) -> PlanRecord {
        self.act();
        assert!(self.requests_inventory, "the inventories are not known yet");
        let version = self.log.state.open_turn().step.0;
        let nodes: Vec<u64> =
            self.log.state.live_workers().map(|(holder, _)| holder.node.0).collect();
        nodes.into_iter().for_each(|node| self.report_held(node, &[0, 1, 2, 3], version));
        self.solve();
        let proposed = self.act();
        let [Entry::Adopt(plan)] = &proposed[..] else { panic!("{proposed:#?}") };
        self.requests_inventory = false;
        (**plan).clone()
    }

    /// All nodes in the plan are ready, and it runs.
    pub fn load(&mut self) {
        for stage in 0..self.plan().stages.len() {
            let ready = self.log.ready(stage);
            self.duties.handle_ready(&self.log.state, ready).expect("it loads");
        }
        let proposed = self.act();
        assert!(matches!(proposed.last(), Some(Entry::Resume { .. })), "{proposed:#?}");
    }

    pub fn nodes(plan: &PlanRecord) -> Vec<NodeId> {
        plan.stages.iter().map(|holder: &Holder| holder.node).collect()
    }

    pub fn requested_window(&self) -> Window {
        self.solve_request.as_ref().expect("a plan is asked for").window
    }
}
