//! Commands of clients that the core accepted: each is answered when the entry proposed for it is
//! applied, or when that lasts too long; and requests that wait for a leader before.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use zbelastic_consensus::access::TokenId;

use zbelastic_api::{ApiRefusal, ChangeSummary, RunDisposition};

/// Commands that wait at once. Beyond it they are refused, to be sent again.
const COMMANDS_PENDING_MAX: usize = 256;
/// How long a command waits for a leader, and then again to be decided, before it is answered that
/// there is no quorum: several elections, and a commit on slow disks. Both together are over within
/// the 30 seconds that a client waits for an answer.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(14);

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

/// Commands that wait, by the index and the term of their entries. `R` is where an answer goes, `A` the parts it
/// is made of.
pub(super) struct PendingCommands<R, A> {
    pending: BTreeMap<(u64, u64), PendingCommand<R, A>>,
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

    /// A command waits for the entry of this index and term.
    pub(super) fn insert(&mut self, entry: (u64, u64), (reply, answer): (R, A), since: Instant) {
        self.pending.insert(entry, PendingCommand { since, reply, answer });
    }

    /// The command with the entry of this index and term, which waits no longer.
    pub(super) fn remove(&mut self, entry: (u64, u64)) -> Option<(R, A)> {
        self.pending.remove(&entry).map(|command| (command.reply, command.answer))
    }

    /// Where the commands are answered that wait for entries up to this index. All up to there are
    /// applied, so another leader's are in their places.
    pub(super) fn take_behind(&mut self, applied: u64) -> Vec<R> {
        let waiting = self.pending.split_off(&(applied + 1, 0));
        let behind = std::mem::replace(&mut self.pending, waiting);
        behind.into_values().map(|command| command.reply).collect()
    }

    /// A tick passed. Yields where the first command that waited too long is to be answered.
    pub(super) fn expire(&mut self, now: Instant) -> Option<R> {
        let is_late = |command: &PendingCommand<R, A>| now - command.since > COMMAND_TIMEOUT;
        let late = self.pending.iter().find(|(_, command)| is_late(command));
        let entry = late.map(|(entry, _)| *entry)?;
        self.remove(entry).map(|(reply, _)| reply)
    }
}

/// Requests that wait for a leader, oldest first.
pub(super) struct LeaderlessRequests<Q>(VecDeque<(Instant, Q)>);

impl<Q> Default for LeaderlessRequests<Q> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<Q> LeaderlessRequests<Q> {
    /// A request waits.
    ///
    /// # Errors
    /// The request, if too many wait.
    pub(super) fn push(&mut self, request: Q, since: Instant) -> Result<(), Q> {
        if self.0.len() >= COMMANDS_PENDING_MAX {
            return Err(request);
        }
        self.0.push_back((since, request));
        Ok(())
    }

    /// All requests, for there is a leader.
    pub(super) fn take(&mut self) -> Vec<Q> {
        self.0.drain(..).map(|(_, request)| request).collect()
    }

    /// The first request that waited too long.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Q> {
        let is_late = |(since, _): &(Instant, Q)| now - *since > COMMAND_TIMEOUT;
        let is_first_late = self.0.front().is_some_and(is_late);
        if is_first_late { self.0.pop_front().map(|(_, request)| request) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_wait_for_their_entry_or_until_they_are_late() {
        let start = Instant::now();
        let mut commands = PendingCommands::default();
        commands.insert((7, 2), ("seven", 70), start);
        commands.insert((8, 2), ("eight", 80), start + Duration::from_secs(1));
        commands.insert((9, 2), ("nine", 90), start);
        assert_eq!(commands.remove((9, 3)), None, "another leader's entry");
        assert_eq!(commands.remove((9, 2)), Some(("nine", 90)));
        assert_eq!(commands.remove((9, 2)), None, "it is answered once");
        assert_eq!(commands.expire(start + COMMAND_TIMEOUT), None);
        let late = start + COMMAND_TIMEOUT + Duration::from_millis(1);
        assert_eq!(commands.expire(late), Some("seven"));
        assert_eq!(commands.expire(late), None);
        assert_eq!(commands.remove((8, 2)), Some(("eight", 80)));
    }

    #[test]
    fn commands_whose_entries_were_replaced_wait_no_longer() {
        let start = Instant::now();
        let mut commands = PendingCommands::default();
        for entry in [(7, 2), (8, 2), (8, 4), (9, 4)] {
            commands.insert(entry, (entry, ()), start);
        }
        assert_eq!(commands.take_behind(6), []);
        assert_eq!(commands.remove((8, 4)), Some(((8, 4), ())));
        assert_eq!(commands.take_behind(8), [(7, 2), (8, 2)]);
        assert_eq!(commands.take_behind(8), []);
        assert_eq!(commands.remove((9, 4)), Some(((9, 4), ())));
    }

    #[test]
    fn requests_wait_for_a_leader_or_until_they_are_late() {
        let start = Instant::now();
        let mut requests = LeaderlessRequests::default();
        requests.push("one", start).expect("space");
        requests.push("two", start + Duration::from_secs(1)).expect("space");
        assert_eq!(requests.expire(start + COMMAND_TIMEOUT), None);
        let late = start + COMMAND_TIMEOUT + Duration::from_millis(1);
        assert_eq!(requests.expire(late), Some("one"));
        assert_eq!(requests.expire(late), None);
        assert_eq!(requests.take(), ["two"]);
        for _ in 0..COMMANDS_PENDING_MAX {
            requests.push("more", start).expect("space");
        }
        assert_eq!(requests.push("too many", start), Err("too many"));
    }

    #[test]
    fn as_many_commands_wait_as_their_limit_says() {
        let mut commands = PendingCommands::default();
        for index in 0..COMMANDS_PENDING_MAX as u64 {
            assert_eq!(commands.check_space(), Ok(()));
            commands.insert((index, 1), ((), ()), Instant::now());
        }
        assert!(matches!(commands.check_space(), Err(ApiRefusal::OutOfResource { .. })));
        commands.remove((0, 1));
        assert_eq!(commands.check_space(), Ok(()));
    }
}
