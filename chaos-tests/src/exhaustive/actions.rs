//! The actions of the model.

use zbelastic_consensus::Entry;
use zbelastic_types::{LayerId, NodeId};

use super::transition_cache::{EntryId, TransitionCache};

/// One transition of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelAction {
    /// A stage computes, if it has not, and the leader receives its report.
    Report { node: NodeId },
    /// A worker holds the update that it keeps the copy of, if it does not, and the leader receives
    /// its report.
    Hold { node: NodeId },
    /// The leader proposes an entry.
    Propose { entry: EntryId },
    /// A proposal is agreed on.
    Agree { entry: EntryId },
    /// The leader dies, and with it as many of the last proposals. Another one begins with no
    /// reports.
    Elect { lost: usize },
    /// A worker dies, and all that it holds is lost.
    Die { node: NodeId },
    /// It is agreed on that it is lost.
    Notice { node: NodeId },
    /// It is agreed on that a worker is lost, and it lives on.
    Fence { node: NodeId },
    /// A fenced worker learns of it, and forgets its layers.
    Forget { node: NodeId },
    /// A worker learns the agreed entries.
    Learn { node: NodeId },
    /// A worker learns of the last seal, and not yet of the plan that came after it.
    LearnSeal { node: NodeId },
    /// A worker learns of a seal that is only proposed. Only a leader with rule R1 off sends it.
    LearnProposal { node: NodeId, entry: EntryId },
    /// A layer of a new plan comes to a worker.
    Fetch { node: NodeId, layer: LayerId },
    /// A worker is ready for a new plan.
    Ready { node: NodeId },
}

impl ModelAction {
    /// A sentence that describes the action.
    pub(super) fn text(self, transitions: &TransitionCache) -> String {
        let name = |entry: EntryId| entry_text(transitions.entry(entry));
        match self {
            Self::Report { node } => format!("worker {node} reports"),
            Self::Hold { node } => format!("worker {node} holds the update that it copies"),
            Self::Propose { entry } => format!("{} is proposed", name(entry)),
            Self::Agree { entry } => format!("{} is agreed on", name(entry)),
            Self::Elect { lost: 0 } => {
                "the leader dies, and none of its proposals is lost".to_owned()
            }
            Self::Elect { lost } => {
                format!("the leader dies, and with it the last {lost} of its proposals")
            }
            Self::Die { node } => format!("worker {node} dies"),
            Self::Notice { node } => format!("it is agreed on that worker {node} is lost"),
            Self::Fence { node } => format!("worker {node} is taken for dead, and lives on"),
            Self::Forget { node } => format!("worker {node} is fenced off and forgets"),
            Self::Learn { node } => format!("worker {node} learns what is agreed on"),
            Self::LearnSeal { node } => format!("worker {node} learns of the last seal"),
            Self::LearnProposal { node, entry } => {
                format!("worker {node} learns of {}, which is only proposed", name(entry))
            }
            Self::Fetch { node, layer } => format!("worker {node} gets layer {layer}"),
            Self::Ready { node } => format!("worker {node} is ready"),
        }
    }
}

fn entry_text(entry: &Entry) -> String {
    match entry {
        Entry::Seal(seal) => format!("the {} of {}", seal.verdict.name(), seal.turn),
        Entry::Adopt(plan) => {
            let nodes: Vec<String> = plan.stages.iter().map(|h| h.node.to_string()).collect();
            let workers = nodes.join(", ");
            format!("plan {} from step {} over workers {workers}", plan.generation, plan.from_step)
        }
        Entry::Resume { generation } => format!("the start of plan {generation}"),
        Entry::Rewind { to, .. } => format!("the way back to step {to}"),
        Entry::Members(_)
        | Entry::Ready(_)
        | Entry::Durable { .. }
        | Entry::Keep { .. }
        | Entry::Checkpoint { .. }
        | Entry::Job(_)
        | Entry::Access(_)
        | Entry::Format(_) => entry.name().to_owned(),
    }
}
