//! Ids: which one of its kind a thing is.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }

            /// The id as a position in a list.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A place in the pipeline, counted from the one that reads the tokens. A stage is a place, a
    /// node is a process: after a re-plan another node may stand at the same stage.
    StageIndex(u32)
}
id! {
    /// A contiguous piece of the model, counted along the model. A stage holds one chunk, or two
    /// under interleaved and V-shaped placements.
    ChunkIndex(u32)
}
id! {
    /// A layer of the model, the smallest thing a partition can move: 0 is the embedding, then
    /// attention and MLP of each block in turn, last the head.
    LayerId(u32)
}
id! {
    /// A parameter tensor, counted in canonical order: model order, never by stage.
    TensorIndex(u32)
}
id! {
    /// A microbatch within a step.
    MicrobatchIndex(u32)
}
id! {
    /// A slice of a microbatch's sequences, counted from their beginning. A program without slices
    /// has one, number 0.
    SliceIndex(u32)
}
id! {
    /// One optimizer step, counted from 0: the batch it reads and the update it leads to.
    Step(u64)
}
id! {
    /// How often work was dropped and begun again under a plan, counted from 0. It fences tensors
    /// of a run that was dropped.
    Attempt(u32)
}
id! {
    /// Number of a plan: which worker holds which stage from which step on.
    Generation(u64)
}
id! {
    /// A run of a cluster, counted from 1 in the order of their beginnings. 0 is of none.
    RunId(u64)
}
id! {
    /// A process of the cluster. Never given twice, not even to a machine that lost its disk.
    NodeId(u64)
}
id! {
    /// One life of a node in the cluster: the index of the log entry that admitted it. It fences
    /// work that an earlier life left under way.
    Incarnation(u64)
}
id! {
    /// A cluster. A forced recovery makes a new one, so that members of the old one are strangers.
    ClusterId(u64)
}
