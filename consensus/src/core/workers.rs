//! Messages of other nodes, which part of a controller handles each, and the briefings that workers
//! are sent.

use zbelastic_types::NodeId;

use super::briefing::{BriefingOmissions, KnownByWorker};
use super::{Core, CoreRefusal};
use crate::duty::{Duties, InputRefusal};
use crate::member::{Holder, LossReason, MemberChange, Role};
use crate::message::{Briefing, Envelope, Message};
use crate::state::StateChange;
use crate::validation::Seal;

impl Core {
    pub(super) fn handle_message(
        &mut self,
        from: NodeId,
        envelope: Envelope,
    ) -> Result<(), CoreRefusal> {
        let expected = self.setup.cluster;
        let found = envelope.cluster;
        if expected != found {
            return Err(CoreRefusal::OtherCluster { expected, found });
        }
        match envelope.message {
            Message::Raft(message) => Ok(self.raft.handle(from, message)?),
            Message::Beat { holder, known, generation, contacts, pulse } => {
                check_sender(from, holder.node)?;
                let recorded = match &mut self.duties {
                    Some(duties) => duties.handle_beat(&self.state, holder, pulse),
                    None => Ok(()),
                };
                let known = KnownByWorker { index: known, generation, contacts };
                self.answer_heartbeat(holder, known);
                Ok(recorded?)
            }
            Message::Join { boot, role, resources, contact } => {
                self.answer_join(from, (role, boot));
                let change = MemberChange::Admit { node: from, boot, role, resources, contact };
                self.with_duties(|duties, core| duties.handle_change(&core.state, change))
            }
            Message::Briefing(_) | Message::Spent { .. } | Message::NotAdmitted { .. } => {
                Err(CoreRefusal::NotForControllers)
            }
            message @ (Message::Report { .. }
            | Message::Held { .. }
            | Message::Inventory { .. }
            | Message::Ready(_)
            | Message::LoadFailed { .. }
            | Message::Saved { .. }
            | Message::Following { .. }
            | Message::Drain { .. }
            | Message::Leave { .. }
            | Message::Moved { .. }) => self.handle_leader_message(from, message),
        }
    }

    /// Messages that only a leader handles.
    fn handle_leader_message(&mut self, from: NodeId, message: Message) -> Result<(), CoreRefusal> {
        if let Some(holder) = message.holder() {
            check_sender(from, holder.node)?;
        }
        self.with_duties(|duties, core| {
            let state = &core.state;
            match message {
                Message::Report { holder, report, state: attested } => {
                    duties.handle_report(state, holder, &report, attested)
                }
                Message::Held { holder, update } => duties.handle_held(state, holder, update),
                Message::Inventory { holder, index, layers } => {
                    duties.handle_inventory(state, holder, index, layers)
                }
                Message::Ready(ready) => duties.handle_ready(state, ready),
                Message::LoadFailed { holder, generation, layer, cause } => {
                    duties.handle_load_failed(state, holder, generation, (layer, cause))
                }
                Message::Saved { holder, version, generation, layers, busy_milliticks } => {
                    let saved = (layers, busy_milliticks);
                    duties.handle_saved(state, holder, (version, generation), saved)
                }
                Message::Following { holder, generation, layers } => {
                    duties.handle_following(state, holder, generation, layers)
                }
                Message::Drain { holder } => {
                    duties.handle_change(state, MemberChange::Drain { holder })
                }
                Message::Leave { holder } => {
                    let reason = LossReason::Drained;
                    duties.handle_change(state, MemberChange::Lost { holder, reason })
                }
                Message::Moved { holder, contact } => {
                    duties.handle_change(state, MemberChange::Moved { holder, contact })
                }
                Message::Raft(_)
                | Message::Join { .. }
                | Message::Beat { .. }
                | Message::Briefing(_)
                | Message::Spent { .. }
                | Message::NotAdmitted { .. } => unreachable!("handled before"),
            }
        })
    }

    /// Calls `handle` with the duties and this controller, if this node leads.
    fn with_duties(
        &mut self,
        handle: impl FnOnce(&mut Duties, &Self) -> Result<(), InputRefusal>,
    ) -> Result<(), CoreRefusal> {
        let Some(mut duties) = self.duties.take() else {
            return Err(CoreRefusal::NotLeader { leader: self.raft.status().leader });
        };
        let result = handle(&mut duties, self);
        self.duties = Some(duties);
        Ok(result?)
    }

    /// Sends workers a briefing after an entry that concerns them, if this node leads. Other
    /// controllers only answer heartbeats and requests to be admitted.
    pub(super) fn brief_on_change(&mut self, index: u64, change: &StateChange) {
        let Some(omissions) = BriefingOmissions::after(change) else { return };
        self.briefings.set_due(index);
        if self.duties.is_some() {
            self.brief_workers(omissions);
        }
    }

    /// Sends all workers a briefing. A worker that lacks an omitted part gets it with the answer to
    /// its next heartbeat.
    pub(super) fn brief_workers(&mut self, omissions: BriefingOmissions) {
        let workers: Vec<_> = self.state.live_workers().map(|(holder, _)| holder.node).collect();
        for node in workers {
            self.brief_node(node, omissions);
        }
    }

    fn brief_node(&mut self, node: NodeId, omissions: BriefingOmissions) {
        let briefing = self.briefing(node, omissions);
        self.outbox.send(node, Message::Briefing(Box::new(briefing)));
    }

    fn briefing(&mut self, node: NodeId, omissions: BriefingOmissions) -> Briefing {
        let leader = self.raft.status().leader;
        self.briefings.briefing(&self.state, (leader, self.duties.as_ref()), node, omissions)
    }

    /// Answers a worker's heartbeat with a briefing if the worker lacks something, is fenced off,
    /// or its inventory is requested.
    fn answer_heartbeat(&mut self, holder: Holder, known: KnownByWorker) {
        let is_fenced = !self.state.is_live(holder);
        // A follower that lags behind does not know all members: a worker that was admitted by a
        // later entry than it has applied gets no answer.
        if is_fenced && holder.incarnation.0 > self.state.applied() {
            return;
        }
        let is_inventory_due =
            self.duties.as_ref().is_some_and(|d| d.requests_inventory_of(holder.node));
        let answer = self.briefings.answer_to(&self.state, known, is_fenced || is_inventory_due);
        if let Some(omissions) = answer {
            self.brief_node(holder.node, omissions);
        }
    }

    /// Answers a worker's request to be admitted: with a briefing if this start was admitted, with
    /// [`Message::Spent`] if this start or a later one was admitted and is lost, and by a leader
    /// with [`Message::NotAdmitted`] if no request of this process will be granted. Only a leader
    /// knows all that was agreed before.
    fn answer_join(&mut self, node: NodeId, (role, boot): (Role, u64)) {
        let asks_leader = role == Role::Worker && self.duties.is_some();
        let refusal = self.state.membership().refusal_of(node, boot).filter(|_| asks_leader);
        if let Some(cause) = refusal {
            return self.outbox.send(node, Message::NotAdmitted { boot, cause });
        }
        let Some(member) = self.state.members().get(&node) else { return };
        let is_live = member.is_live();
        let is_worker = member.role == Role::Worker;
        let last = member.boot;
        if is_live && is_worker && last == boot {
            self.brief_node(node, BriefingOmissions::NOTHING);
        } else if !is_live && is_worker && last >= boot {
            self.outbox.send(node, Message::Spent { boot: last });
        }
    }

    /// A leader's known bug: it sends workers a seal that is not agreed on yet.
    pub(super) fn send_proposal(&mut self, seal: Seal) {
        let workers: Vec<_> = self.state.live_workers().map(|(holder, _)| holder.node).collect();
        for node in workers {
            let briefing = self.briefing(node, BriefingOmissions::ALL);
            let proposal = Briefing { seal: Some(seal), ..briefing };
            self.outbox.send(node, Message::Briefing(Box::new(proposal)));
        }
    }
}

/// Checks that a message about a node was sent by that node.
fn check_sender(expected: NodeId, found: NodeId) -> Result<(), CoreRefusal> {
    if expected == found { Ok(()) } else { Err(CoreRefusal::WrongSender { expected, found }) }
}
