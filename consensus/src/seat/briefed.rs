//! Briefings: what is agreed, turned into orders.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId, Step};

use super::{LoadOrder, Membership, Order, Seat, Standing, Untold, Work};
use crate::member::Holder;
use crate::message::{Briefing, Envelope, Message};
use crate::mutant::{self, Mutant};
use crate::plan::PlanRecord;
use crate::rehearsal::Rehearsal;

/// Why a message to a worker was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BriefingRefusal {
    /// It is of another cluster.
    #[error("of cluster {found}, expected {expected}")]
    OtherCluster {
        /// The cluster that this worker belongs to.
        expected: ClusterId,
        /// The cluster that the message belongs to.
        found: ClusterId,
    },
    /// It does not come from a controller.
    #[error("node {from} is no controller")]
    NotAController {
        /// The node that sent the message.
        from: NodeId,
    },
    /// Controllers send workers briefings and `Spent` only; this is another kind of message.
    #[error("not a message for a worker")]
    NotForWorkers,
    /// A later briefing was applied already.
    #[error("a briefing at {found}, known is {known}")]
    Old {
        /// Index of the last briefing applied.
        known: u64,
        /// Index of the refused briefing.
        found: u64,
    },
    /// It is about another life of the node, or none.
    #[error("a briefing for somebody else")]
    NotMine,
    /// It names a plan that this worker does not know and that is not in it.
    #[error("generation {found} is not known here")]
    UnknownPlan {
        /// Generation of the plan that the briefing names.
        found: Generation,
    },
}

impl Seat {
    pub(super) fn handle_message(
        &mut self,
        from: NodeId,
        envelope: Envelope,
    ) -> Result<(), BriefingRefusal> {
        let (expected, found) = (self.setup.cluster, envelope.cluster);
        if expected != found {
            return Err(BriefingRefusal::OtherCluster { expected, found });
        }
        let is_known = self.setup.controllers.contains(&from);
        if !is_known && !self.contacts.controllers().any(|node| node == from) {
            return Err(BriefingRefusal::NotAController { from });
        }
        match envelope.message {
            Message::Briefing(briefing) => self.handle_briefing(from, *briefing),
            Message::Spent { boot } => self.handle_spent(boot),
            Message::Raft(_)
            | Message::Join { .. }
            | Message::Beat { .. }
            | Message::Report { .. }
            | Message::Held { .. }
            | Message::Inventory { .. }
            | Message::Ready(_)
            | Message::LoadFailed { .. }
            | Message::Saved { .. }
            | Message::Following { .. }
            | Message::Drain { .. }
            | Message::Leave { .. }
            | Message::Moved { .. } => Err(BriefingRefusal::NotForWorkers),
        }
    }

    /// Its request cannot be granted: it was, and that life is over before it began.
    fn handle_spent(&mut self, boot: u64) -> Result<(), BriefingRefusal> {
        match &self.standing {
            Standing::Outside if boot >= self.setup.boot => {
                self.setup.boot = boot + 1;
                Ok(())
            }
            Standing::Outside | Standing::Member(_) => Err(BriefingRefusal::NotMine),
        }
    }

    fn handle_briefing(&mut self, from: NodeId, briefing: Briefing) -> Result<(), BriefingRefusal> {
        let node = self.setup.node;
        let mine = briefing.you.filter(|(boot, _)| *boot == self.setup.boot);
        let mine = mine.map(|(_, incarnation)| Holder { node, incarnation });
        let known = match &self.standing {
            Standing::Outside => 0,
            Standing::Member(member) => member.known,
        };
        if briefing.index < known {
            return Err(BriefingRefusal::Old { known, found: briefing.index });
        }
        match (&self.standing, mine) {
            (Standing::Outside, None) => return Err(BriefingRefusal::NotMine),
            (Standing::Outside, Some(holder)) => {
                self.check_plan(Generation(0), &briefing)?;
                self.enter(holder, briefing.rewinds);
            }
            (Standing::Member(member), Some(holder)) if member.holder == holder => {
                self.check_plan(member.generation, &briefing)?;
            }
            (Standing::Member(_), _) => {
                self.leave_membership();
                return Ok(());
            }
        }
        self.leader = briefing.leader;
        if let Some(contacts) = briefing.contacts.as_ref().filter(|c| c.index > self.contacts.index)
        {
            self.contacts = Arc::clone(contacts.value());
        }
        if let Some(spec) = &briefing.spec {
            self.spec = Some(Arc::clone(spec.value()));
        }
        self.follow(&briefing);
        self.rehearse(from, &briefing);
        Ok(())
    }

    /// A plan later than the one known, and the configuration it is for, are in the briefing.
    fn check_plan(&self, known: Generation, briefing: &Briefing) -> Result<(), BriefingRefusal> {
        let found = briefing.generation;
        let has_spec = briefing.spec.is_some() || self.spec.is_some();
        if found <= known || (briefing.plan.is_some() && has_spec) {
            Ok(())
        } else {
            Err(BriefingRefusal::UnknownPlan { found })
        }
    }

    fn enter(&mut self, holder: Holder, rewinds: u64) {
        let generation = Generation(0);
        let (work, untold) = (Work::Idle, Untold::default());
        let member = Membership {
            holder,
            known: 0,
            generation,
            rewinds,
            work,
            settled: None,
            inventory_due: None,
            rehearsal: None,
            save_ordered: None,
            untold,
        };
        self.standing = Standing::Member(Box::new(member));
        if self.is_draining {
            self.tell_all(&Message::Drain { holder });
        }
    }

    /// This life is over: whatever it held is not the cluster's any more.
    pub(super) fn leave_membership(&mut self) {
        if let Standing::Member(_) = &self.standing {
            self.standing = Standing::Outside;
            self.setup.boot += 1;
            self.order(Order::Forget);
        }
    }

    fn follow(&mut self, briefing: &Briefing) {
        self.go_back(briefing);
        self.settle(briefing);
        self.change_plan(briefing);
        let Standing::Member(member) = &mut self.standing else { return };
        member.known = briefing.index;
        member.untold.forget_before(briefing.open, &briefing.pending);
        if briefing.is_running {
            member.untold.ready = None;
            match &member.work {
                Work::Loading { plan } if plan.generation == briefing.generation => {
                    member.work = Work::Running { plan: plan.clone() };
                    self.order(Order::Run { generation: briefing.generation });
                }
                Work::Left => {
                    member.work = Work::Idle;
                    self.order(Order::Release);
                }
                Work::Idle | Work::Loading { .. } | Work::Running { .. } => {}
            }
        }
        self.save(briefing);
        if briefing.asks_inventory {
            self.take_inventory(briefing.index);
        }
    }

    /// Orders a version to be written, once, if it is to become a checkpoint although the configuration
    /// does not make it one. Versions of the configuration the host knows, and a host that loads gets the
    /// order with the plan. It is the open version, or one that follows: a worker that runs writes that as
    /// soon as it is sealed.
    fn save(&mut self, briefing: &Briefing) {
        let Standing::Member(member) = &mut self.standing else { return };
        let open = briefing.open.step;
        let is_told = |version| self.spec.as_ref().is_none_or(|spec| spec.checkpoints(version));
        let (generation, is_running) = match &member.work {
            Work::Loading { plan } => (plan.generation, false),
            Work::Running { plan } => (plan.generation, true),
            Work::Idle | Work::Left => return,
        };
        let is_its = |version: &Step| *version == open || (is_running && *version > open);
        let pending = briefing.pending.iter().copied();
        let mut asked = pending.filter(|version| is_its(version) && !is_told(*version));
        let Some(version) = asked.next() else { return };
        let order = Some((generation, version));
        if generation == briefing.generation && member.save_ordered != order {
            member.save_ordered = order;
            self.order(Order::Save { generation, version });
        }
    }

    /// Lets go of what was held before the run went back, however long ago that was.
    fn go_back(&mut self, briefing: &Briefing) {
        let Standing::Member(member) = &mut self.standing else { return };
        if member.rewinds == briefing.rewinds {
            return;
        }
        member.rewinds = briefing.rewinds;
        member.work = Work::Idle;
        member.untold.inventory = None;
        member.end_rehearsal();
        self.order(Order::GoBack);
    }

    /// Orders an inventory, unless one is being taken or was taken since: that one is resent until it is
    /// known, and each beat until then is answered with the same request.
    fn take_inventory(&mut self, index: u64) {
        let Standing::Member(member) = &mut self.standing else { return };
        let is_taken = member.untold.inventory.as_ref().is_some_and(|(taken, _)| *taken >= index);
        if member.inventory_due.is_none() && !is_taken {
            member.inventory_due = Some(index);
            member.end_rehearsal();
            self.order(Order::TakeInventory { index });
        }
    }

    /// Passes the last seal on, once, if it is of the plan that runs or is followed here.
    fn settle(&mut self, briefing: &Briefing) {
        let Standing::Member(member) = &mut self.standing else { return };
        let generation = match &member.work {
            Work::Running { plan } => Some(plan.generation),
            Work::Idle | Work::Left | Work::Loading { .. } => {
                member.rehearsal.as_ref().map(|rehearsal| rehearsal.generation)
            }
        };
        let (Some(generation), Some(seal)) = (generation, briefing.seal) else { return };
        let is_new = member.settled.is_none_or(|settled| settled < seal.turn);
        if seal.turn.generation == generation && (is_new || mutant::is(Mutant::M6AppliedTwice)) {
            member.settled = Some(seal.turn);
            self.order(Order::Settle(seal));
        }
    }

    /// Takes up the part that a new plan gives, if there is a new plan.
    fn change_plan(&mut self, briefing: &Briefing) {
        let found = briefing.generation;
        let Standing::Member(member) = &mut self.standing else { return };
        let plan = briefing.plan.as_ref().map(|plan| Arc::clone(plan.value()));
        let (Some(plan), Some(spec)) = (plan, self.spec.clone()) else { return };
        if found <= member.generation {
            return;
        }
        let was_at_work = match member.work {
            Work::Loading { .. } | Work::Running { .. } => true,
            Work::Idle | Work::Left => false,
        };
        member.generation = found;
        self.op_ticks_max = Some(plan.op_ticks_max);
        member.untold.leave_plan();
        let (me, was_rehearsing) = (member.holder, member.end_rehearsal());
        member.inventory_due = None;
        // A plan that was closed before this worker received it has nothing to load any more.
        let stage = plan.stage_of(member.holder).filter(|_| plan.from_step == briefing.open.step);
        member.work = match stage {
            Some(_) => Work::Loading { plan: plan.clone() },
            None if was_at_work => Work::Left,
            None => std::mem::replace(&mut member.work, Work::Idle),
        };
        if stage.is_some() && briefing.pending.contains(&briefing.open.step) {
            member.save_ordered = Some((found, briefing.open.step));
        }
        if was_at_work {
            self.order(Order::Stop);
        }
        match stage {
            // What was followed is loaded.
            Some(stage) => self.order(load_order(plan, stage, spec, briefing)),
            None if was_rehearsing => self.order(Order::Rehearse { me, rehearsal: None }),
            None => {}
        }
    }

    /// Takes up what is to be copied ahead, if it concerns this worker. Only the leader can end it: other
    /// controllers do not know what the leader plans.
    fn rehearse(&mut self, from: NodeId, briefing: &Briefing) {
        let Standing::Member(member) = &mut self.standing else { return };
        let me = member.holder;
        let is_mine = |r: &&Arc<Rehearsal>| r.generation == member.generation && r.names(me);
        let rehearsal = briefing.rehearsal.as_ref().filter(is_mine).cloned();
        let is_told = rehearsal.is_some() || briefing.leader == Some(from);
        if member.rehearsal == rehearsal || !is_told || briefing.asks_inventory {
            return;
        }
        member.rehearsal.clone_from(&rehearsal);
        member.untold.following = None;
        self.order(Order::Rehearse { me, rehearsal });
    }
}

impl Membership {
    /// Forgets what was rehearsed. Yields whether anything was.
    fn end_rehearsal(&mut self) -> bool {
        self.untold.following = None;
        self.rehearsal.take().is_some()
    }
}

fn load_order(
    plan: Arc<PlanRecord>,
    stage: zbelastic_types::StageIndex,
    spec: Arc<crate::job::JobSpec>,
    briefing: &Briefing,
) -> Order {
    let (turn, updates) = (briefing.open, briefing.updates);
    let is_pending = briefing.pending.contains(&turn.step);
    Order::Load(Box::new(LoadOrder { plan, stage, spec, turn, updates, is_pending }))
}

impl Untold {
    /// Forgets what was about the plan before.
    fn leave_plan(&mut self) {
        let Self { report, held, ready, load_failed, saved: _, inventory, following: _ } = self;
        (*report, *ready, *load_failed, *inventory) = (None, None, None, None);
        held.clear();
    }
}
