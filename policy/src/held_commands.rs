//! Commands of a session that a worker holds back while the data of its job is fetched, and which of them later ones
//! have made void.

use std::collections::VecDeque;

use zbelastic_consensus::session::WorkerCommand;

/// Drops the commands of plans that a later command ends: none of them was loaded. What gives up layers stays.
pub fn drop_superseded(held: &mut VecDeque<WorkerCommand>) {
    let Some(last) = held.iter().rposition(ends_plan) else { return };
    let mut in_force = held.split_off(last);
    held.retain(gives_up_layers);
    held.append(&mut in_force);
}

/// Whether nothing that was loaded before is needed behind a command.
fn ends_plan(command: &WorkerCommand) -> bool {
    match command {
        WorkerCommand::Load(_)
        | WorkerCommand::Stop
        | WorkerCommand::Rewind
        | WorkerCommand::EndLife
        | WorkerCommand::Forget => true,
        WorkerCommand::ApplySeal(_)
        | WorkerCommand::Run { .. }
        | WorkerCommand::Save { .. }
        | WorkerCommand::PreCopy { .. }
        | WorkerCommand::Release
        | WorkerCommand::TakeInventory { .. } => false,
    }
}

/// Whether a command counts whatever was loaded.
fn gives_up_layers(command: &WorkerCommand) -> bool {
    match command {
        WorkerCommand::Rewind | WorkerCommand::EndLife | WorkerCommand::Forget => true,
        WorkerCommand::Load(_)
        | WorkerCommand::Stop
        | WorkerCommand::ApplySeal(_)
        | WorkerCommand::Run { .. }
        | WorkerCommand::Save { .. }
        | WorkerCommand::PreCopy { .. }
        | WorkerCommand::Release
        | WorkerCommand::TakeInventory { .. } => false,
    }
}

/// Whether one of the commands needs the data of a job.
#[must_use]
pub fn needs_data(held: &VecDeque<WorkerCommand>) -> bool {
    let needs = |command: &WorkerCommand| {
        matches!(command, WorkerCommand::Load(_) | WorkerCommand::PreCopy { .. })
    };
    held.iter().any(needs)
}

#[cfg(test)]
mod tests {
    use zbelastic_types::Generation;

    use super::*;

    const RUN: WorkerCommand = WorkerCommand::Run { generation: Generation(1) };

    fn left(commands: &[WorkerCommand]) -> Vec<WorkerCommand> {
        let mut held = commands.iter().cloned().collect();
        drop_superseded(&mut held);
        held.into()
    }

    #[test]
    fn what_belongs_to_a_plan_that_was_ended_is_dropped_and_what_gives_up_layers_is_not() {
        use WorkerCommand::{EndLife, Release, Rewind, Stop};
        assert_eq!(left(&[RUN, Release]), [RUN, Release]);
        assert_eq!(left(&[RUN, Stop]), [Stop]);
        assert_eq!(left(&[RUN, Rewind, RUN, Stop, RUN]), [Rewind, Stop, RUN]);
        assert_eq!(left(&[EndLife, RUN, Stop, Stop]), [EndLife, Stop]);
        assert_eq!(left(&[]), []);
    }

    #[test]
    fn data_is_needed_for_layers_alone() {
        assert!(!needs_data(&[RUN, WorkerCommand::Stop].into()));
    }
}
