//! The faults of a node's numbers, as its stage executor meets them.

use std::cell::RefCell;
use std::rc::Rc;

use zbelastic_types::LayerId;

/// A fault of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NumericFault {
    /// The next gradients, so many, have an element that is not a number, or is infinite.
    Mark(f32, u32),
    /// The next sum is wrong by this factor.
    SumFactor(f64),
    /// These bits of the state flip before the next report.
    StateFlip(u64),
}

/// The faults that are still to happen on a node.
#[derive(Clone, Debug, Default)]
pub struct PendingFaults {
    next: Option<NumericFault>,
    /// The device computes wrong sums, always.
    pub always_wrong: bool,
    flipped: Option<LayerId>,
    /// Whether a step is about to be run again: only a known bug looks at this.
    pub(crate) is_replaying: bool,
    /// Faults that had an effect and were not removed from here yet.
    effects: Vec<NumericFault>,
}

/// The faults of a node, shared by the life and the node's stage executor.
pub type NumericFaults = Rc<RefCell<PendingFaults>>;

impl PendingFaults {
    /// Something goes wrong soon.
    pub fn plan(&mut self, fault: NumericFault) {
        self.next = Some(fault);
    }

    /// Nothing goes wrong any more.
    pub fn clear(&mut self) {
        (self.next, self.always_wrong) = (None, false);
    }

    /// The layer with a flipped bit in its state.
    #[must_use]
    pub fn flipped(&self) -> Option<LayerId> {
        self.flipped
    }

    /// The flipped state is gone.
    pub fn forget_flip(&mut self) {
        self.flipped = None;
    }

    /// Faults that had an effect since the last call.
    pub(crate) fn take_effects(&mut self) -> Vec<NumericFault> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn gradient_mark(&mut self) -> Option<f32> {
        match self.next {
            Some(NumericFault::Mark(mark, times)) => {
                let left = times - 1;
                self.next = (left > 0).then_some(NumericFault::Mark(mark, left));
                self.effects.push(NumericFault::Mark(mark, 1));
                Some(mark)
            }
            Some(NumericFault::SumFactor(_) | NumericFault::StateFlip(_)) | None => None,
        }
    }

    /// A wrong state is wrong only if another node has the right one: a stage executor without a
    /// copy does not call this.
    pub(crate) fn state_flip(&mut self, layer: LayerId) -> Option<u64> {
        match self.next {
            Some(NumericFault::StateFlip(bits)) => {
                (self.next, self.flipped) = (None, Some(layer));
                self.effects.push(NumericFault::StateFlip(bits));
                Some(bits)
            }
            Some(NumericFault::SumFactor(_) | NumericFault::Mark(..)) | None => None,
        }
    }

    /// The factor by which a sum is wrong, if one is planned or the device is always wrong.
    pub(crate) fn sum_factor(&mut self) -> Option<f64> {
        let factor = match self.next {
            _ if self.always_wrong => Some(1.0 + 1e-9),
            Some(NumericFault::SumFactor(factor)) => {
                self.next = None;
                Some(factor)
            }
            Some(NumericFault::Mark(..) | NumericFault::StateFlip(_)) | None => None,
        };
        self.effects.extend(factor.map(NumericFault::SumFactor));
        factor
    }
}
