//! What the processes of a cluster send each other, as bytes: the first byte of a control message
//! determines what it is. What travels as floats is in [`crate::frames`].

use serde::{Deserialize, Serialize};
use zbelastic_api::CollectionReport;
use zbelastic_consensus::access::AuthorityReport;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_identity::AuthoritySecret;
use zbelastic_policy::data::DataName;
use zbelastic_policy::disk_space::{DiskSpace, DiskSpaceShortage};
use zbelastic_policy::drain_cause::DrainCause;
use zbelastic_policy::layer_requests::LayerRequest;
use zbelastic_policy::long_activity::LongActivity;
use zbelastic_policy::scrub::ScrubReport;
use zbelastic_policy::trust::MemberClaim;
use zbelastic_timing::{MeasuredSlice, MessageArrival};
use zbelastic_trainer::model::{LayerSpec, LayerTimes};
use zbelastic_types::{Bytes, Digest, Generation, LayerId, NodeId, StageIndex, Step};

pub use zbelastic_policy::piece::{
    CollectedSpace, FreedSpace, PieceRef, SaveFailed, StoreReferences,
};

/// Layers on their way between workers. The bytes themselves travel as bulk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerMessage {
    /// A layer is requested.
    Fetch {
        /// The plan it is for.
        generation: Generation,
        /// The worker that requests it.
        sender: Holder,
        /// Index of the layer in the model.
        layer: LayerId,
        /// The version of the layer: steps sealed before it.
        version: Step,
    },
    /// A layer is requested ahead of a planned change, and its updates from then on.
    Follow {
        /// The plan in force.
        generation: Generation,
        /// The worker that requests it.
        sender: Holder,
        /// Index of the layer in the model.
        layer: LayerId,
    },
    /// A layer that was requested can be fetched.
    Offer {
        /// The plan it is for.
        generation: Generation,
        /// The worker that has it.
        sender: Holder,
        /// Index of the layer in the model.
        layer: LayerId,
        /// The version of the layer: steps sealed before it.
        version: Step,
        /// The turn whose seal it waits for, if it is requested ahead.
        open: Option<Turn>,
    },
}

impl LayerMessage {
    /// The layer that it requests, or offers.
    #[must_use]
    pub const fn request(&self) -> LayerRequest {
        let (generation, layer, version) = match *self {
            Self::Fetch { generation, layer, version, .. }
            | Self::Offer { generation, layer, version, open: None, .. } => {
                (generation, layer, Some(version))
            }
            Self::Follow { generation, layer, .. }
            | Self::Offer { generation, layer, open: Some(_), .. } => (generation, layer, None),
        };
        LayerRequest { generation, layer, version }
    }
}

/// The length of a layer as it travels.
#[must_use]
pub fn layer_bytes(spec: &LayerSpec) -> u64 {
    zbelastic_trainer::elastic::image_bytes(spec.state_len())
}

/// What one node sends another about bytes it holds, and about time. The protocol's own messages
/// are envelopes of `consensus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeMessage {
    /// Between workers: a layer is requested, or offered.
    Layer(LayerMessage),
    /// A piece of a checkpoint is to be kept by the receiver too: it fetches it as bulk.
    Keep(PieceRef),
    /// The receiver of [`Self::Keep`] has it, durably.
    Kept(PieceRef),
    /// The receiver of [`Self::Keep`] could not keep it.
    NotKept(PieceRef),
    /// What is not referred to may be removed.
    Collect(StoreReferences),
    /// A text, or weights, that the receiver is to keep too.
    KeepData(DataName),
    /// From workers to the leader: how a stage spent a step.
    Took {
        /// The generation number of the plan.
        generation: Generation,
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// Microseconds from the report before to this one.
        span_us: u64,
        /// Microseconds of it in passes and updates.
        busy_us: u64,
        /// Microseconds of it with nothing to run before a verdict.
        waited_us: u64,
        /// What it did when.
        slices: Vec<MeasuredSlice>,
    },
    /// From workers to the leader: a layer arrived for the plan that began.
    Moved {
        /// The plan it is for.
        plan: Generation,
        /// Its bytes, as it travelled.
        bytes: u64,
        /// Microseconds from the question to the arrival.
        took_us: u64,
    },
    /// From the worker with the head to the leader: the loss on held-out text.
    Evaluated {
        /// After so many steps.
        steps_done: u64,
        /// The mean cross-entropy, in nats for each token.
        loss: f64,
    },
    /// From workers to the leader: what the layers of a stage took between two reports. A
    /// controller of an earlier version does not know it and drops it.
    LayersTook {
        /// The turn of the later report, which names the plan.
        turn: Turn,
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// What each of its layers took.
        times: Box<LayerTimes>,
    },
    /// From workers to the leader: what arrived from other stages when, between two reports. A
    /// controller of an earlier version does not know it and drops it.
    Arrived {
        /// The generation number of the plan.
        generation: Generation,
        /// Index of the stage in pipeline order.
        stage: StageIndex,
        /// What arrived, in order.
        arrivals: Vec<MessageArrival>,
    },
    /// From a node that was sent [`Self::Keep`] to the one that sent it, once a second while bytes
    /// arrive: it fetches or writes this piece, or one that it was requested to keep before. The
    /// requester waits on, and asks another node when such reports stop. It names no bytes, so a
    /// node that reports for ever without an end is only given up after an hour of them;
    /// [`Self::KeepingLeft`] names them and is sent beside it, for nodes of versions that know only
    /// this one. A node of a still earlier version drops it.
    Keeping(PieceRef),
    /// From workers to controllers: how much they have done, and what takes them long. A controller
    /// of an earlier version does not know it and drops it.
    Working {
        /// Operations that ran and bytes that arrived, together: a count that grows with progress.
        done: u64,
        /// What takes long, and how far it is.
        activity: Option<LongActivity>,
    },
    /// From workers to controllers: too few nodes could write a layer, so the checkpoint does not
    /// be completed. A controller of an earlier version does not know it and drops it.
    SaveFailed(SaveFailed),
    /// From controllers to workers: clients read layers of a checkpoint, as at the end of a run. A
    /// worker of an earlier version does not know it and drops it.
    Exporting,
    /// From members to controllers: the space on the disk of the sender's store. A controller of an
    /// earlier version does not know it and drops it.
    Room {
        /// Free and total bytes of that disk.
        room: DiskSpace,
        /// What it lacks, if it is low.
        low: Option<DiskSpaceShortage>,
    },
    /// From members to controllers: how far the sender is with the authority that follows.
    Authority(AuthorityReport),
    /// As [`Self::Keeping`], with the bytes that are yet to arrive until the piece is kept. A node of
    /// an earlier version does not know it and drops it.
    KeepingLeft {
        /// The piece that is to be kept.
        piece: PieceRef,
        /// Its bytes, and those of the pieces before it, that are yet to arrive.
        left: u64,
    },
    /// From members to controllers: how far reading everything on the sender's disk again is. A
    /// controller of an earlier version does not know it and drops it.
    Scrubbed(ScrubReport),
    /// Between controllers: what the cluster is called. A controller of an earlier version does not
    /// know it and drops it.
    Founding {
        /// The name of the cluster.
        cluster_name: String,
        /// When it was founded, in milliseconds since 1970, if the sender knows that.
        founded_ms: Option<u64>,
    },
    /// From workers to controllers: what the sender's threads or device multiply and add at best, in
    /// floating-point operations a second. A controller of an earlier version does not know it and
    /// drops it.
    Peak {
        /// As the worker measured it at its start.
        flop_per_s: u64,
    },
    /// From workers to controllers: the same of all cores of the sender's machine, which other
    /// workers may share. A controller of an earlier version drops it, too.
    MachinePeak {
        /// As the worker measured it at its start.
        flop_per_s: u64,
    },
    /// From workers to controllers when a plan begins: a layer that it needs of the sender had been
    /// copied ahead. A controller of an earlier version does not know it and drops it.
    CopiedAhead {
        /// The plan that begins.
        plan: Generation,
        /// Its bytes, as it travelled.
        bytes: u64,
        /// Microseconds from the question to the arrival.
        took_us: u64,
        /// Microseconds from the arrival to now.
        ago_us: u64,
    },
    /// From members to controllers: the memory of the sender's process that is resident. A controller of
    /// an earlier version does not know it and drops it.
    Resident(Bytes),
    /// From workers to controllers, before the request to drain: what the sender drains for. A
    /// controller of an earlier version does not know it and drops it.
    Draining(DrainCause),
}

impl NodeMessage {
    /// The claim that not every member may make; none if any member may send it to any other.
    #[must_use]
    pub const fn claim(&self) -> Option<MemberClaim> {
        match self {
            Self::Collect(_) => Some(MemberClaim::Collect),
            Self::Founding { .. } => Some(MemberClaim::Founding),
            Self::Exporting => Some(MemberClaim::Exporting),
            Self::Evaluated { .. } => Some(MemberClaim::HeldOut),
            Self::KeepData(name) => Some(MemberClaim::KeepData(*name)),
            Self::SaveFailed(failed) => Some(MemberClaim::SaveFailed(failed.layer)),
            Self::Took { generation, stage, .. }
            | Self::Arrived { generation, stage, .. }
            | Self::LayersTook { turn: Turn { generation, .. }, stage, .. } => {
                Some(MemberClaim::StageReport { generation: *generation, stage: *stage })
            }
            Self::Moved { plan, .. } | Self::CopiedAhead { plan, .. } => {
                Some(MemberClaim::LayerArrived(*plan))
            }
            Self::Layer(_)
            | Self::Keep(_)
            | Self::Kept(_)
            | Self::NotKept(_)
            | Self::Keeping(_)
            | Self::KeepingLeft { .. }
            | Self::Working { .. }
            | Self::Room { .. }
            | Self::Scrubbed(_)
            | Self::Peak { .. }
            | Self::MachinePeak { .. }
            | Self::Resident(_)
            | Self::Draining(_)
            | Self::Authority(_) => None,
        }
    }
}

/// What members request of each other, apart from the requests of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// A certificate that holds for longer, for the key that the member has.
    Renew {
        /// The signing request for the member's key.
        request: Vec<u8>,
    },
    /// From controllers of a version before [`Self::CollectWithAsides`], as which it is handled.
    Collect(StoreReferences),
    /// From controllers: the key of the authority that follows.
    AuthorityKey {
        /// Which: the digest of its key.
        key: Digest,
    },
    /// From controllers: what is not referred to is to be removed now, and damaged stores that were
    /// put aside, if they may go.
    CollectWithAsides(StoreReferences),
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// The certificate, and those that it leads to.
    Renewed {
        /// The member's own first.
        chain: Vec<Vec<u8>>,
        /// The authorities that are trusted now.
        roots: Vec<Vec<u8>>,
    },
    /// How much was removed.
    Collected(FreedSpace),
    /// The authority, key and all.
    AuthorityKey(AuthoritySecret),
    /// The request was refused.
    Refused {
        /// Why it was refused, in words.
        why: String,
    },
    /// How much was removed, and how much of stores that were put aside.
    CollectedWithAsides(CollectedSpace),
}

/// What is referred to, and how a collection by that is answered.
pub type CollectionRequest = (StoreReferences, fn(CollectedSpace) -> NodeAnswer);

/// What a member's request begins with; those of clients begin with another.
const NODE_REQUEST: &[u8; 4] = b"zben";

impl NodeRequest {
    /// The request as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = NODE_REQUEST.to_vec();
        bytes.extend(encode(self));
        bytes
    }

    /// What is referred to, and the answer in the form of the request, if it is for a collection.
    #[must_use]
    pub fn collection(self) -> Option<CollectionRequest> {
        match self {
            Self::Collect(referred) => {
                Some((referred, |space: CollectedSpace| NodeAnswer::Collected(space.freed)))
            }
            Self::CollectWithAsides(referred) => Some((referred, NodeAnswer::CollectedWithAsides)),
            Self::Renew { .. } | Self::AuthorityKey { .. } => None,
        }
    }

    /// The request in `bytes`, if it is a member's.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes.strip_prefix(NODE_REQUEST)?).ok()
    }
}

/// What is fetched over the bulk lane, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BulkKey {
    /// A layer that was offered for a plan.
    Layer {
        /// The generation number of the plan.
        generation: Generation,
        /// Index of the layer in the model.
        layer: LayerId,
        /// The version of the layer: steps sealed before it.
        version: Step,
    },
    /// A piece of a checkpoint.
    Piece(PieceRef),
    /// Text, or weights to begin with.
    Data(Digest),
    /// The hashes of the chunks of such data, as a list: [`zbelastic_policy::data_chunks`]. Programs
    /// that do not know it answer as if they did not have it.
    DataHashes(Digest),
}

/// A message encoded as a vector of bytes.
///
/// # Panics
/// Never: a vector takes all bytes.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector takes all bytes")
}

/// The value in `bytes`, to the last byte.
///
/// # Errors
/// If they are none.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        (_, _) => Err(postcard::Error::DeserializeBadEncoding),
    }
}

/// What a collection on a node removed and kept, or why it did not.
#[must_use]
pub fn collection_report(
    node: NodeId,
    outcome: Result<CollectedSpace, String>,
) -> CollectionReport {
    let CollectedSpace { freed, asides } = match outcome {
        Ok(space) => space,
        Err(why) => {
            let mut nothing = CollectedSpace::default();
            nothing.asides.fault = Some(why);
            nothing
        }
    };
    CollectionReport {
        node,
        chunks: freed.chunks,
        bytes: Bytes(freed.bytes),
        aside_bytes_removed: Bytes(asides.removed.bytes),
        aside_bytes_kept: Bytes(asides.kept.bytes),
        error: asides.fault,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::{Flow, Pass};
    use zbelastic_timing::ArrivalKind;
    use zbelastic_trainer::model::{LayerClass, LayerOp};
    use zbelastic_types::Attempt;

    use super::*;

    #[test]
    fn what_layers_took_travels_and_takes_a_few_hundred_bytes() {
        const BYTES_MAX: usize = 512;
        let mut times = LayerTimes::default();
        for class in LayerClass::ALL {
            for part in [LayerOp::Forward, LayerOp::Recompute, LayerOp::Commit] {
                times.add(class, part, 1234.5);
            }
        }
        let turn = Turn { generation: Generation(1), step: Step(2), attempt: Attempt(3) };
        let stage = StageIndex(4);
        let message = NodeMessage::LayersTook { turn, stage, times: Box::new(times) };
        let bytes = encode(&message);
        assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
        assert_eq!(decode(&bytes), Ok(message));
        assert!(decode::<NodeMessage>(&bytes[..bytes.len() - 1]).is_err(), "a part of it");
    }

    /// The number of a kind stays: programs of several versions send each other messages.
    #[test]
    fn memory_and_the_cause_of_draining_travel_behind_the_kinds_of_earlier_versions() {
        let kinds = [
            (NodeMessage::Resident(Bytes(3 << 30)), 23),
            (NodeMessage::Draining(DrainCause::Notice), 24),
        ];
        for (message, number) in kinds {
            let bytes = encode(&message);
            assert_eq!(bytes[0], number);
            assert_eq!(decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn arrivals_travel() {
        let turn = Turn { generation: Generation(1), step: Step(2), attempt: Attempt(3) };
        let of = StageIndex(0);
        let flow = Flow::Backward;
        let pass = Pass::sliced(1, 2, 3);
        let what = [
            ArrivalKind::Boundary { turn, flow, pass },
            ArrivalKind::Prefix { turn },
            ArrivalKind::Gradients { turn, of },
        ];
        let arrivals = what.map(|what| MessageArrival { what, bytes: 77, at_us: 1234.5 }).to_vec();
        let stage = StageIndex(1);
        let message = NodeMessage::Arrived { generation: Generation(1), stage, arrivals };
        assert_eq!(decode(&encode(&message)), Ok(message));
    }
}
