//! Commands of clients that wait at a controller: for a leader, for data that is compared, and then for
//! the entry that was proposed for each of them.

use std::collections::{BTreeMap, VecDeque};

use crate::tick::TICK;

/// Commands that wait at once, of each kind. Beyond it they are refused, to be sent again.
pub const COMMANDS_PENDING_MAX: usize = 256;
/// Ticks that a command waits for a leader, and then again to be decided, before it is answered that
/// there is no quorum: 14 s, several elections and a commit on slow disks. Both together are over
/// within the 30 seconds that a client waits for an answer, as are a wait for data that is compared, which
/// begins with a leader there, and a commit.
pub const COMMAND_TICKS_MAX: u32 = 14_000 / TICK.as_millis() as u32;

/// As many commands wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{COMMANDS_PENDING_MAX} commands wait already")]
pub struct TooManyCommands;

/// Index and term of an entry. In another term an entry at the same index is another one.
pub type EntryId = (u64, u64);

/// Commands that wait for their entries. `R` is where an answer goes, `A` the parts it is made of.
#[derive(Debug)]
pub struct PendingCommands<R, A> {
    pending: BTreeMap<EntryId, PendingCommand<R, A>>,
}

#[derive(Debug)]
struct PendingCommand<R, A> {
    ticks: u32,
    reply: R,
    answer: A,
}

impl<R, A> Default for PendingCommands<R, A> {
    fn default() -> Self {
        Self { pending: BTreeMap::new() }
    }
}

impl<R, A> PendingCommands<R, A> {
    /// Checks that another command may wait.
    ///
    /// # Errors
    /// If too many wait.
    pub fn check_space(&self) -> Result<(), TooManyCommands> {
        if self.pending.len() < COMMANDS_PENDING_MAX { Ok(()) } else { Err(TooManyCommands) }
    }

    /// A command waits for this entry.
    pub fn insert(&mut self, entry: EntryId, (reply, answer): (R, A)) {
        self.pending.insert(entry, PendingCommand { ticks: 0, reply, answer });
    }

    /// The command with this entry, which waits no longer.
    pub fn remove(&mut self, entry: EntryId) -> Option<(R, A)> {
        self.pending.remove(&entry).map(|command| (command.reply, command.answer))
    }

    /// Where the commands are answered that wait for entries up to this index. All up to there are
    /// applied, so another leader's are in their places.
    pub fn take_behind(&mut self, applied: u64) -> Vec<R> {
        let waiting = self.pending.split_off(&(applied + 1, 0));
        let behind = std::mem::replace(&mut self.pending, waiting);
        behind.into_values().map(|command| command.reply).collect()
    }

    /// A tick passed. Yields where the first command that waited too long is to be answered.
    pub fn handle_tick(&mut self) -> Option<R> {
        self.pending.values_mut().for_each(|command| command.ticks += 1);
        let late = self.pending.iter().find(|(_, command)| command.ticks > COMMAND_TICKS_MAX);
        let entry = late.map(|(entry, _)| *entry)?;
        self.remove(entry).map(|(reply, _)| reply)
    }
}

/// Commands that wait for a leader, or for data that is compared, oldest first.
#[derive(Debug)]
pub struct WaitingCommands<Q>(VecDeque<(u32, Q)>);

impl<Q> Default for WaitingCommands<Q> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<Q> WaitingCommands<Q> {
    /// A command waits.
    ///
    /// # Errors
    /// The command, if too many wait.
    pub fn push(&mut self, command: Q) -> Result<(), Q> {
        if self.0.len() >= COMMANDS_PENDING_MAX {
            return Err(command);
        }
        self.0.push_back((0, command));
        Ok(())
    }

    /// A tick passed. Yields the commands that are due: all if there is nothing to wait for, and else
    /// those that waited too long.
    pub fn handle_tick(&mut self, must_wait: bool) -> Vec<Q> {
        self.0.iter_mut().for_each(|(ticks, _)| *ticks += 1);
        let is_due = |(ticks, _): &(u32, Q)| !must_wait || *ticks > COMMAND_TICKS_MAX;
        let count = self.0.iter().take_while(|command| is_due(command)).count();
        self.0.drain(..count).map(|(_, command)| command).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_wait_for_their_entry_or_until_they_are_late() {
        let mut commands = PendingCommands::default();
        commands.insert((7, 2), ("seven", 70));
        commands.insert((9, 2), ("nine", 90));
        assert_eq!(commands.remove((9, 3)), None, "another leader's entry");
        assert_eq!(commands.remove((9, 2)), Some(("nine", 90)));
        assert_eq!(commands.remove((9, 2)), None, "it is answered once");
        assert_eq!(commands.handle_tick(), None);
        commands.insert((8, 2), ("eight", 80));
        assert!((1..COMMAND_TICKS_MAX).all(|_| commands.handle_tick().is_none()));
        assert_eq!(commands.handle_tick(), Some("seven"));
        assert_eq!(commands.remove((8, 2)), Some(("eight", 80)));
    }

    #[test]
    fn commands_whose_entries_were_replaced_wait_no_longer() {
        let mut commands = PendingCommands::default();
        for entry in [(7, 2), (8, 2), (8, 4), (9, 4)] {
            commands.insert(entry, (entry, ()));
        }
        assert_eq!(commands.take_behind(6), []);
        assert_eq!(commands.remove((8, 4)), Some(((8, 4), ())));
        assert_eq!(commands.take_behind(8), [(7, 2), (8, 2)]);
        assert_eq!(commands.take_behind(8), []);
        assert_eq!(commands.remove((9, 4)), Some(((9, 4), ())));
    }

    #[test]
    fn commands_wait_for_a_leader_or_until_they_are_late() {
        let mut commands = WaitingCommands::default();
        commands.push("one").expect("space");
        assert_eq!(commands.handle_tick(true), Vec::<&str>::new());
        commands.push("two").expect("space");
        assert!((1..COMMAND_TICKS_MAX).all(|_| commands.handle_tick(true).is_empty()));
        assert_eq!(commands.handle_tick(true), ["one"]);
        assert_eq!(commands.handle_tick(false), ["two"]);
    }

    #[test]
    fn as_many_commands_wait_as_their_limit_says() {
        let mut commands = PendingCommands::default();
        let mut leaderless = WaitingCommands::default();
        for index in 0..COMMANDS_PENDING_MAX as u64 {
            assert_eq!(commands.check_space(), Ok(()));
            commands.insert((index, 1), ((), ()));
            assert_eq!(leaderless.push(index), Ok(()));
        }
        assert_eq!(commands.check_space(), Err(TooManyCommands));
        assert_eq!(leaderless.push(7), Err(7));
        commands.remove((0, 1));
        assert_eq!(commands.check_space(), Ok(()));
    }
}
