//! Layers that are read ahead of whoever writes them, by several readers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender};

use zbelastic_api::LAYERS_READ_MAX;
use zbelastic_kernels::HostFloats;
use zbelastic_types::LayerId;
use zbelastic_wording::CommandFailure;

/// Layers that are read or being read and were not taken: one for each reader, one that is there
/// when the one before has been written, and the largest.
const AHEAD_MAX: usize = LAYERS_READ_MAX + 2;

/// The weights of a layer, or why they cannot be had, from the reader of this index.
pub(super) struct ReadLayer {
    pub reader: usize,
    pub layer: LayerId,
    pub weights: Result<HostFloats, CommandFailure>,
}

/// Sends requests to readers that are idle, and keeps what they read until it is taken.
pub(super) struct ReadAhead {
    /// What is not requested yet.
    left: VecDeque<LayerId>,
    readers: Vec<Sender<LayerId>>,
    idle: Vec<usize>,
    read: Receiver<ReadLayer>,
    /// What was read and is not taken.
    kept: BTreeMap<LayerId, HostFloats>,
    /// How many layers were requested and are not taken.
    ahead: usize,
}

impl ReadAhead {
    /// Reads the layers in `order`, in which they will be taken; `largest` of them is requested first.
    /// Its bytes would come alone at the end, if the order had it there.
    pub(super) fn new(
        order: &[LayerId],
        largest: Option<LayerId>,
        readers: Vec<Sender<LayerId>>,
        read: Receiver<ReadLayer>,
    ) -> Self {
        let others = order.iter().copied().filter(|layer| Some(*layer) != largest);
        let left = largest.into_iter().chain(others).collect();
        let idle = (0..readers.len()).collect();
        Self { left, readers, idle, read, kept: BTreeMap::new(), ahead: 0 }
    }

    /// Takes a layer, once it is read.
    ///
    /// # Errors
    /// If it, or one that was requested meanwhile, cannot be had.
    pub(super) fn take(&mut self, layer: LayerId) -> Result<HostFloats, CommandFailure> {
        loop {
            self.request();
            if let Some(weights) = self.kept.remove(&layer) {
                self.ahead -= 1;
                self.request();
                return Ok(weights);
            }
            let ReadLayer { reader, layer, weights } =
                self.read.recv().expect("each layer of the order is read");
            self.idle.push(reader);
            self.kept.insert(layer, weights?);
        }
    }

    /// Sends the next requests to readers that are idle.
    fn request(&mut self) {
        while self.ahead < AHEAD_MAX
            && let Some(reader) = self.idle.last()
            && let Some(layer) = self.left.pop_front()
        {
            self.readers[*reader].send(layer).expect("a reader reads until the end");
            self.idle.pop();
            self.ahead += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use zbelastic_wording::FailureCode;

    use super::*;

    /// Two readers, what is requested of each, and where it is put when it is read.
    fn readers() -> (Vec<Sender<LayerId>>, Vec<Receiver<LayerId>>) {
        (0..2).map(|_| mpsc::channel()).unzip()
    }

    fn whole(reader: usize, layer: u32) -> ReadLayer {
        let weights = Ok(HostFloats::from(vec![layer as f32]));
        ReadLayer { reader, layer: LayerId(layer), weights }
    }

    #[test]
    fn the_largest_is_requested_first_and_the_others_in_their_order() {
        let (senders, requests) = readers();
        let (sender, read) = mpsc::channel();
        let order = [3, 0, 1, 2].map(LayerId);
        let mut ahead = ReadAhead::new(&order, Some(LayerId(1)), senders, read);
        sender.send(whole(0, 3)).expect("it is received");
        sender.send(whole(0, 0)).expect("it is received");
        assert_eq!(ahead.take(LayerId(3)).expect("it is read")[..], [3.0]);
        assert_eq!(requests[1].try_iter().collect::<Vec<_>>(), [LayerId(1)]);
        assert_eq!(ahead.take(LayerId(0)).expect("it is read")[..], [0.0]);
        assert_eq!(requests[0].try_iter().collect::<Vec<_>>(), [3, 0, 2].map(LayerId));
        let lost = CommandFailure::new(FailureCode::NotFound, "layer 2");
        let weights = Err(lost);
        sender.send(ReadLayer { reader: 0, layer: LayerId(2), weights }).expect("it is received");
        assert_eq!(ahead.take(LayerId(1)).expect_err("the other is lost").what, "layer 2");
    }

    #[test]
    fn no_more_are_ahead_than_have_room() {
        let (senders, requests) = readers();
        let (sender, read) = mpsc::channel();
        let order: Vec<LayerId> = (0..20).map(LayerId).collect();
        let mut ahead = ReadAhead::new(&order, None, senders, read);
        // One reader reads the first layer, while the other would read all that come behind it.
        (1..10).for_each(|layer| sender.send(whole(0, layer)).expect("it is received"));
        sender.send(whole(1, 0)).expect("it is received");
        ahead.take(LayerId(0)).expect("it is read");
        let of_fast: Vec<LayerId> = requests[0].try_iter().collect();
        assert_eq!(of_fast, [1, 2, 3, 4, 5].map(LayerId), "six are ahead with the first");
        let of_slow: Vec<LayerId> = requests[1].try_iter().collect();
        assert_eq!(of_slow, [0, 6].map(LayerId), "one more for the one that is taken");
    }
}
