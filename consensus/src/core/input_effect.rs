//! Which decisions a leader must look at after an input.

use super::Input;
use crate::message::Message;

/// The work that an input may lead to. With a look at all members for each report of a step, a
/// leader's work for a step would grow with the square of the workers; each tick looks at
/// everything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputEffect {
    /// Nothing is due until the next tick: the input shows that a worker is present.
    Nothing,
    /// The seal of the open turn may be due.
    Seal,
    /// Any decision may change.
    All,
}

impl InputEffect {
    /// The effect of an input, by its kind.
    pub(super) const fn of(input: &Input) -> Self {
        let message = match input {
            Input::Message { message, .. } => &message.message,
            Input::Tick
            | Input::Solved { .. }
            | Input::Connected { .. }
            | Input::Closed { .. }
            | Input::Measured(_)
            | Input::CheckpointUnplaced { .. }
            | Input::DiskAmple
            | Input::LogsFull { .. }
            | Input::Command(_) => return InputEffect::All,
        };
        match message {
            Message::Beat { .. } => InputEffect::Nothing,
            Message::Report { .. } | Message::Held { .. } => InputEffect::Seal,
            Message::Raft(_)
            | Message::Join { .. }
            | Message::Inventory { .. }
            | Message::Ready(_)
            | Message::LoadFailed { .. }
            | Message::Saved { .. }
            | Message::Following { .. }
            | Message::Drain { .. }
            | Message::Leave { .. }
            | Message::Briefing(_)
            | Message::Spent { .. }
            | Message::NotAdmitted { .. }
            | Message::Moved { .. } => InputEffect::All,
        }
    }
}
