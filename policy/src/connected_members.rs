//! The members that are connected to a controller: over which path, and what they reported of
//! themselves. A report ends with its connection; reports of others that are not connected do not count, which
//! bounds them.

use std::collections::BTreeMap;

use zbelastic_consensus::core::{CommandOutcome, CoreRefusal, OperatorCommand};
use zbelastic_transport::TransportPath;
use zbelastic_types::{Bytes, NodeId};

use crate::drain_cause::DrainCause;
use crate::machine_peak::WorkerPeak;

/// The path to a member, and its reports.
#[derive(Debug)]
struct ConnectedMember {
    path: TransportPath,
    /// Floating-point operations a second at best.
    peak: Option<u64>,
    /// The same of all cores of its machine.
    machine_peak: Option<u64>,
    /// The memory of its process.
    resident: Option<Bytes>,
    /// Why it drains, until that is agreed.
    drain_cause: Option<DrainCause>,
}

/// The members that are connected, and their reports.
#[derive(Debug, Default)]
pub struct ConnectedMembers(BTreeMap<NodeId, ConnectedMember>);

impl ConnectedMembers {
    /// A member is connected, and has reported nothing yet.
    pub fn note_up(&mut self, node: NodeId, path: TransportPath) {
        let member = ConnectedMember {
            path,
            peak: None,
            machine_peak: None,
            resident: None,
            drain_cause: None,
        };
        self.0.insert(node, member);
    }

    /// The connection to a member ended.
    pub fn note_down(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// A worker reported what it multiplies and adds at best, in floating-point operations a second.
    pub fn note_peak(&mut self, node: NodeId, flop_per_s: u64) {
        self.change(node, |member| member.peak = Some(flop_per_s));
    }

    /// A worker reported the same of all cores of its machine.
    pub fn note_machine_peak(&mut self, node: NodeId, flop_per_s: u64) {
        self.change(node, |member| member.machine_peak = Some(flop_per_s));
    }

    /// A member reported the memory of its process.
    pub fn note_resident(&mut self, node: NodeId, memory: Bytes) {
        self.change(node, |member| member.resident = Some(memory));
    }

    /// A controller answered an operator's command, of which one that drains a node is the cause of that
    /// unless it was refused.
    pub fn note_command(
        &mut self,
        command: &OperatorCommand,
        answer: &Result<CommandOutcome, CoreRefusal>,
    ) {
        if let (OperatorCommand::Drain(node), Ok(_)) = (command, answer) {
            self.note_drain(*node, DrainCause::Command);
        }
    }

    /// A worker reported why it drains.
    pub fn note_drain(&mut self, node: NodeId, cause: DrainCause) {
        self.change(node, |member| member.drain_cause = Some(cause));
    }

    /// The path of the connection to a node, if it is connected.
    #[must_use]
    pub fn path(&self, node: NodeId) -> Option<TransportPath> {
        self.0.get(&node).map(|member| member.path)
    }

    /// What a worker on this machine multiplies and adds at best, if it reported that.
    #[must_use]
    pub fn peak(&self, node: NodeId, machine: u64) -> Option<WorkerPeak> {
        let member = self.0.get(&node)?;
        Some(WorkerPeak { machine, own: member.peak?, of_machine: member.machine_peak })
    }

    /// The memory of a member's process, in bytes, if it reported that.
    #[must_use]
    pub fn resident(&self, node: NodeId) -> Option<Bytes> {
        self.0.get(&node)?.resident
    }

    /// Why a node drains of which that is agreed now, in words, if it is known. It is asked for once: the
    /// next time has another cause.
    pub fn take_drain_reason(&mut self, node: NodeId) -> Option<String> {
        Some(self.0.get_mut(&node)?.drain_cause.take()?.to_string())
    }

    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut ConnectedMember)) {
        if let Some(member) = self.0.get_mut(&node) {
            change(member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_while_its_member_is_connected() {
        let node = NodeId(4);
        let mut members = ConnectedMembers::default();
        let report = |members: &mut ConnectedMembers| {
            members.note_peak(node, 8);
            members.note_resident(node, Bytes(7));
            members.note_drain(node, DrainCause::Notice);
        };
        let found = |members: &ConnectedMembers| {
            (members.path(node), members.peak(node, 1), members.resident(node))
        };
        report(&mut members);
        assert_eq!(found(&members), (None, None, None), "it is not connected");
        members.note_up(node, TransportPath::Quic);
        assert_eq!(found(&members), (Some(TransportPath::Quic), None, None));
        assert_eq!(members.take_drain_reason(node), None);
        report(&mut members);
        let peak = WorkerPeak { machine: 1, own: 8, of_machine: None };
        assert_eq!(found(&members), (Some(TransportPath::Quic), Some(peak), Some(Bytes(7))));
        members.note_machine_peak(node, 9);
        assert_eq!(members.peak(node, 1).and_then(|peak| peak.of_machine), Some(9));
        let reason = members.take_drain_reason(node);
        assert_eq!(reason, Some(DrainCause::Notice.to_string()));
        assert_eq!(members.take_drain_reason(node), None, "the next time is another");
        members.note_down(node);
        assert_eq!(found(&members), (None, None, None));
    }

    #[test]
    fn a_command_is_the_cause_of_a_drain_if_it_was_accepted() {
        let node = NodeId(4);
        let mut members = ConnectedMembers::default();
        members.note_up(node, TransportPath::Quic);
        let drain = OperatorCommand::Drain(node);
        members.note_command(&drain, &Err(CoreRefusal::Draining { node }));
        members.note_command(&OperatorCommand::Remove(node), &Ok(CommandOutcome::Noted));
        assert_eq!(members.take_drain_reason(node), None);
        members.note_command(&drain, &Ok(CommandOutcome::Noted));
        assert_eq!(members.take_drain_reason(node), Some(DrainCause::Command.to_string()));
    }
}
