//! Greetings, as sender and as receiver. See [`super::super::greeting`].

use ::raft::INVALID_ID;
use zbelastic_types::NodeId;

use super::super::greeting::{Greeting, GreetingJudgement, RaftHello, RaftHelloAnswer, Welcome};
use super::super::message::RaftMessage;
use super::super::output::FatalReason;
use super::super::record::RaftRecord;
use super::super::refusal::RaftRefusal;
use super::super::setup::NUMBER_MAX;
use super::{RaftNode, RaftPhase};

impl RaftNode {
    /// A voter that is not the only one greets the others before it takes part.
    pub(super) fn greet(&mut self) {
        let node = self.setup.node;
        let applied = self.driver.raw.raft.raft_log.applied;
        if self.members.current().is_voter(node) {
            let greeting = Greeting::new(node, self.members.current().clone(), applied);
            if !greeting.is_over() {
                self.phase = RaftPhase::Greeting(greeting);
            }
        }
    }

    /// Sends a greeting to all nodes that have not answered it with a welcome, once this start is
    /// durable.
    pub(super) fn send_hellos(&mut self) {
        let RaftPhase::Greeting(greeting) = &self.phase else { return };
        if !self.is_boot_durable {
            return;
        }
        let hello = RaftHello {
            boot: self.boot,
            life: self.setup.life,
            term: self.driver.raw.raft.term,
            last_index: self.driver.last_index(),
        };
        self.outbox.send(greeting.unanswered().map(|to| (to, RaftMessage::Hello(hello))));
    }

    pub(super) fn handle_hello(
        &mut self,
        from: NodeId,
        hello: RaftHello,
    ) -> Result<(), RaftRefusal> {
        let RaftHello { boot, life, term, last_index } = hello;
        self.check_greeter(from)?;
        for (quantity, found) in [("the boot", boot), ("the term", term), ("the index", last_index)]
        {
            if found > NUMBER_MAX || (found == 0 && quantity == "the boot") {
                return Err(RaftRefusal::BadNumber { quantity, found });
            }
        }
        let verdict = match self.peers.judge(from, &hello) {
            GreetingJudgement::NoRoom => return Err(RaftRefusal::NoRoom { from }),
            GreetingJudgement::Stale(cause) => Err(cause),
            GreetingJudgement::Known => Ok(self.welcome()),
            GreetingJudgement::New => {
                self.outbox.persist(vec![RaftRecord::PeerBoot { node: from, boot, life }]);
                Ok(self.welcome())
            }
        };
        self.outbox
            .hold([(from, RaftMessage::HelloAnswer(RaftHelloAnswer { boot, life, verdict }))]);
        Ok(())
    }

    fn check_greeter(&self, from: NodeId) -> Result<(), RaftRefusal> {
        if from == self.setup.node || from.0 == INVALID_ID {
            return Err(RaftRefusal::WrongSender { expected: self.setup.node, found: from });
        }
        if self.members.is_removed(from) {
            return Err(RaftRefusal::RemovedNode { from });
        }
        Ok(())
    }

    fn welcome(&self) -> Welcome {
        let commit = self.driver.raw.raft.raft_log.applied;
        Welcome { commit, members: self.members.current().clone() }
    }

    pub(super) fn handle_hello_answer(
        &mut self,
        from: NodeId,
        answer: RaftHelloAnswer,
    ) -> Result<(), RaftRefusal> {
        let RaftPhase::Greeting(greeting) = &mut self.phase else { return Ok(()) };
        if (answer.boot, answer.life) != (self.boot, self.setup.life) {
            return Ok(());
        }
        if !greeting.is_greeted(from) {
            return Err(RaftRefusal::UnknownNode { from });
        }
        match answer.verdict {
            Err(cause) => self.stop(FatalReason::StaleDisk { by: from, cause }),
            Ok(welcome) if greeting.is_newer(&welcome) => {
                welcome.members.check().map_err(RaftRefusal::BadMembers)?;
                greeting.learn(welcome);
                greeting.welcome(from);
                self.end_greeting();
                self.send_hellos();
            }
            Ok(_) => {
                greeting.welcome(from);
                self.end_greeting();
            }
        }
        Ok(())
    }

    pub(super) fn end_greeting(&mut self) {
        if let RaftPhase::Greeting(greeting) = &self.phase
            && greeting.is_over()
        {
            self.phase = RaftPhase::Active;
        }
    }
}
