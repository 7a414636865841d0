//! Messages of other nodes, and which part of a controller handles each.

use zbelastic_types::NodeId;

use super::{Core, CoreRefusal};
use crate::duty::{Duties, InputRefusal};
use crate::member::{LossReason, MemberChange};
use crate::message::{Envelope, Message};

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
                self.answer_heartbeat(holder, known, generation, contacts);
                Ok(recorded?)
            }
            Message::Join { boot, role, resources, contact } => {
                self.answer_join(from, boot);
                let change = MemberChange::Admit { node: from, boot, role, resources, contact };
                self.with_duties(|duties, core| duties.handle_change(&core.state, change))
            }
            Message::Briefing(_) | Message::Spent { .. } => Err(CoreRefusal::NotForControllers),
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
                | Message::Spent { .. } => unreachable!("handled before"),
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
}

/// Checks that a message about a node was sent by that node.
fn check_sender(expected: NodeId, found: NodeId) -> Result<(), CoreRefusal> {
    if expected == found { Ok(()) } else { Err(CoreRefusal::WrongSender { expected, found }) }
}
