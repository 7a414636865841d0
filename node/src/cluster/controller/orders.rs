//! Orders of clients: taken by the core at once or refused, answered when what was proposed for them
//! is applied.

use std::collections::BTreeMap;
use std::time::Instant;

use zbelastic_consensus::core::{Command, CoreRefusal, Ordered};
use zbelastic_consensus::state::EntryRefusal;
use zbelastic_transport::Reply;

use super::{Controller, ORDER_WAIT};
use crate::api::{Answer, Refusal};

/// Orders that wait at once. Beyond it they are refused, to be tried again.
const ORDERS_MAX: usize = 256;

/// What is answered once an order is carried out.
pub(super) type Outcome = Box<dyn FnOnce(&mut Controller) -> Answer>;

/// An order that waits.
struct Pending {
    since: Instant,
    reply: Reply,
    outcome: Outcome,
}

/// Orders that wait, by the index of their entries.
#[derive(Default)]
pub(super) struct Orders {
    pending: BTreeMap<u64, Pending>,
}

impl Controller {
    /// Gives an order to the core; `outcome` is answered when it is carried out.
    pub(super) fn order(&mut self, command: Command, reply: Reply, outcome: Outcome) {
        if self.orders.pending.len() >= ORDERS_MAX {
            let what = format!("{ORDERS_MAX} orders wait already");
            return self.reply(reply, &Answer::Refused(Refusal::OutOfResource { what }));
        }
        match self.core.order(command) {
            Ok(Ordered::Proposed { index, .. }) => {
                let pending = Pending { since: Instant::now(), reply, outcome };
                self.orders.pending.insert(index, pending);
            }
            Ok(Ordered::Noted) => {
                let answer = outcome(self);
                self.reply(reply, &answer);
            }
            Err(CoreRefusal::NotLeader { .. }) => {
                let answer = self.redirect();
                self.reply(reply, &answer);
            }
            Err(refusal) => {
                let answer = Answer::Refused(self.refusal(&refusal));
                self.reply(reply, &answer);
            }
        }
    }

    /// The entry of this index was applied, or changed nothing.
    pub(super) fn answer_order(&mut self, index: u64, result: Result<(), EntryRefusal>) {
        let Some(Pending { reply, outcome, .. }) = self.orders.pending.remove(&index) else {
            return;
        };
        let answer = match result {
            Ok(()) => outcome(self),
            Err(refusal) => Answer::Refused(self.entry_refusal(&refusal)),
        };
        self.reply(reply, &answer);
    }

    /// Answers an order that waits too long that there is no quorum.
    pub(super) fn answer_late_orders(&mut self) {
        let is_late = |pending: &Pending| pending.since.elapsed() > ORDER_WAIT;
        let late = self.orders.pending.iter().find(|(_, pending)| is_late(pending));
        let Some(index) = late.map(|(index, _)| *index) else { return };
        let Some(pending) = self.orders.pending.remove(&index) else { return };
        let answer = self.no_quorum();
        self.reply(pending.reply, &answer);
    }
}
