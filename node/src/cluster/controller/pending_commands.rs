//! Commands of clients that the core accepted: each is answered when the entry proposed for it is
//! applied, or when that lasts too long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_consensus::access::TokenId;

use zbelastic_api::{ApiRefusal, ChangeSummary, RunDisposition};

/// Commands that wait at once. Beyond it they are refused, to be sent again.
const COMMANDS_PENDING_MAX: usize = 256;
/// How long a command waits to be decided before it is answered that there is no quorum.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to a command once it is applied.
pub(super) enum CommandAnswer {
    /// The change, and its nodes.
    Done(ChangeSummary),
    /// A token was created: its id, its text, and where a node that has it can join.
    TokenCreated { id: TokenId, text: String, addresses: Vec<String> },
    /// A token was revoked. `with_nodes`: the nodes that joined with it are removed now.
    TokenRevoked { token: TokenId, with_nodes: bool },
    /// The status of the job.
    Job,
    /// A run was accepted; its events begin at a sequence number.
    Run { disposition: RunDisposition, events_from: u64 },
    /// How far the change of authority is.
    Rotation,
}

/// Commands that wait, by the index of their entries. `R` is where an answer goes, `A` the parts it
/// is made of.
pub(super) struct PendingCommands<R, A> {
    pending: BTreeMap<u64, PendingCommand<R, A>>,
}

struct PendingCommand<R, A> {
    since: Instant,
    reply: R,
    answer: A,
}

impl<R, A> Default for PendingCommands<R, A> {
    fn default() -> Self {
        Self { pending: BTreeMap::new() }
    }
}

impl<R, A> PendingCommands<R, A> {
    /// Whether another command may wait.
    ///
    /// # Errors
    /// If too many wait.
    pub(super) fn check_space(&self) -> Result<(), ApiRefusal> {
        if self.pending.len() < COMMANDS_PENDING_MAX {
            return Ok(());
        }
        let what = format!("{COMMANDS_PENDING_MAX} commands wait already");
        Err(ApiRefusal::OutOfResource { what })
    }

    /// A command waits for the entry of this index.
    pub(super) fn insert(&mut self, index: u64, (reply, answer): (R, A), since: Instant) {
        self.pending.insert(index, PendingCommand { since, reply, answer });
    }

    /// The command with the entry at this index, which waits no longer.
    pub(super) fn remove(&mut self, index: u64) -> Option<(R, A)> {
        self.pending.remove(&index).map(|command| (command.reply, command.answer))
    }

    /// A tick passed. Yields where the first command that waited too long is to be answered.
    pub(super) fn expire(&mut self, now: Instant) -> Option<R> {
        let is_late = |command: &PendingCommand<R, A>| now - command.since > COMMAND_TIMEOUT;
        let late = self.pending.iter().find(|(_, command)| is_late(command));
        let index = late.map(|(index, _)| *index)?;
        self.remove(index).map(|(reply, _)| reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_wait_for_their_entry_or_until_they_are_late() {
        let start = Instant::now();
        let mut commands = PendingCommands::default();
        commands.insert(7, ("seven", 70), start);
        commands.insert(8, ("eight", 80), start + Duration::from_secs(1));
        commands.insert(9, ("nine", 90), start);
        assert_eq!(commands.remove(9), Some(("nine", 90)));
        assert_eq!(commands.remove(9), None, "it is answered once");
        assert_eq!(commands.expire(start + COMMAND_TIMEOUT), None);
        let late = start + COMMAND_TIMEOUT + Duration::from_millis(1);
        assert_eq!(commands.expire(late), Some("seven"));
        assert_eq!(commands.expire(late), None);
        assert_eq!(commands.remove(8), Some(("eight", 80)));
    }

    #[test]
    fn as_many_commands_wait_as_their_limit_says() {
        let mut commands = PendingCommands::default();
        for index in 0..COMMANDS_PENDING_MAX as u64 {
            assert_eq!(commands.check_space(), Ok(()));
            commands.insert(index, ((), ()), Instant::now());
        }
        assert!(matches!(commands.check_space(), Err(ApiRefusal::OutOfResource { .. })));
        commands.remove(0);
        assert_eq!(commands.check_space(), Ok(()));
    }
}
