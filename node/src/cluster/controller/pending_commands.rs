//! Commands of clients: accepted by the core at once or refused, answered when what was proposed
//! for them is applied.

use std::collections::BTreeMap;
use std::time::Instant;

use zbelastic_api::{ApiAnswer, ApiRefusal};
use zbelastic_consensus::core::{CommandOutcome, CoreRefusal, OperatorCommand};
use zbelastic_consensus::state::EntryRefusal;
use zbelastic_transport::RequestReply;

use super::{COMMAND_TIMEOUT, ControllerNode};

/// Commands that wait at once. Beyond it they are refused, to be tried again.
const COMMANDS_PENDING_MAX: usize = 256;

/// Makes the answer once a command is applied.
pub(super) type AppliedAnswer = Box<dyn FnOnce(&mut ControllerNode) -> ApiAnswer>;

/// A command of a client that waits to be applied.
struct PendingCommand {
    since: Instant,
    reply: RequestReply,
    answer: AppliedAnswer,
}

/// Commands that wait, by the index of their entries.
#[derive(Default)]
pub(super) struct PendingCommands {
    pending: BTreeMap<u64, PendingCommand>,
}

impl ControllerNode {
    /// Passes a command to the core; `make_answer` makes the answer when it is applied.
    pub(super) fn propose_command(
        &mut self,
        command: OperatorCommand,
        reply: RequestReply,
        make_answer: AppliedAnswer,
    ) {
        if self.pending_commands.pending.len() >= COMMANDS_PENDING_MAX {
            let what = format!("{COMMANDS_PENDING_MAX} commands wait already");
            return self.reply(reply, &ApiAnswer::Refused(ApiRefusal::OutOfResource { what }));
        }
        match self.core.execute_command(command) {
            Ok(CommandOutcome::Proposed { index, .. }) => {
                let pending = PendingCommand { since: Instant::now(), reply, answer: make_answer };
                self.pending_commands.pending.insert(index, pending);
            }
            Ok(CommandOutcome::Noted) => {
                let answer = make_answer(self);
                self.reply(reply, &answer);
            }
            Err(CoreRefusal::NotLeader { .. }) => {
                let answer = self.redirect();
                self.reply(reply, &answer);
            }
            Err(refusal) => {
                let answer = ApiAnswer::Refused(self.refusal(&refusal));
                self.reply(reply, &answer);
            }
        }
    }

    /// The entry of this index was applied, or changed nothing.
    pub(super) fn answer_command(&mut self, index: u64, result: Result<(), EntryRefusal>) {
        let Some(PendingCommand { reply, answer: make_answer, .. }) =
            self.pending_commands.pending.remove(&index)
        else {
            return;
        };
        let answer = match result {
            Ok(()) => make_answer(self),
            Err(refusal) => ApiAnswer::Refused(self.entry_refusal(&refusal)),
        };
        self.reply(reply, &answer);
    }

    /// Answers a command that waits too long that there is no quorum.
    pub(super) fn expire_commands(&mut self) {
        let is_late = |pending: &PendingCommand| pending.since.elapsed() > COMMAND_TIMEOUT;
        let late = self.pending_commands.pending.iter().find(|(_, pending)| is_late(pending));
        let Some(index) = late.map(|(index, _)| *index) else { return };
        let Some(pending) = self.pending_commands.pending.remove(&index) else { return };
        let answer = self.no_quorum();
        self.reply(pending.reply, &answer);
    }
}
