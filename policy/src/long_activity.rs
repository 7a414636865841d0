//! Long work of a worker beside the passes of steps, as `status` shows it.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zbelastic_types::{Bytes, Digest, LayerId, Step};

/// Long work of a worker beside the passes of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongActivity {
    /// Layers are received from other workers.
    Receiving {
        /// Bytes that were verified so far.
        done: Bytes,
        /// Bytes of all layers that were requested.
        total: Bytes,
    },
    /// Held-out text is evaluated.
    Evaluating {
        /// Passes of this stage that ran.
        done: u32,
        /// Passes of this stage.
        total: u32,
    },
    /// Layers of a checkpoint are written, here and where copies of them are kept.
    Writing {
        /// The version that the checkpoint holds.
        version: Step,
        /// Bytes that are durable.
        done: Bytes,
        /// Bytes of all layers of this stage.
        total: Bytes,
    },
    /// A step waits for the exchange of weights with other islands.
    AwaitingIslands {
        /// The first layer whose weights are awaited.
        layer: LayerId,
    },
    /// The text, weights or a shard of the job is on no node that was asked; it is requested again.
    AwaitingData {
        /// Its hash, by which the job names it; 64 hexadecimal letters in JSON.
        #[serde(serialize_with = "to_hex", deserialize_with = "of_hex")]
        hash: Digest,
    },
    /// A step waits for tokens that are on their way from other nodes.
    AwaitingTokens {
        /// The step that reads them.
        step: Step,
    },
    /// The weights that a run begins with are drawn, or read from their file.
    Drawing {
        /// Bytes of layers that are there.
        done: Bytes,
        /// Bytes of all layers that are held here.
        total: Bytes,
    },
    /// Clients read layers of a checkpoint, as whoever writes the model does.
    Exporting {},
}

fn to_hex<S: Serializer>(hash: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(hash)
}

fn of_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
    let text = String::deserialize(deserializer)?;
    Digest::parse(&text).ok_or_else(|| D::Error::custom("no 64 hexadecimal letters"))
}

impl std::fmt::Display for LongActivity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Receiving { done, total } => write!(f, "receives layers, {done} of {total}"),
            Self::Evaluating { done, total } => {
                write!(f, "evaluates held-out text, {done} of {total} passes")
            }
            Self::Writing { version, done, total } => {
                write!(f, "writes checkpoint {version}, {done} of {total}")
            }
            Self::AwaitingIslands { layer } => {
                write!(f, "waits for other islands to exchange layer {layer}")
            }
            Self::AwaitingData { hash } => {
                write!(
                    f,
                    "waits for data {hash}, which no node has: `run` with the same configuration sends it again"
                )
            }
            Self::AwaitingTokens { step } => {
                write!(f, "waits for the tokens of step {step}, which are on their way")
            }
            Self::Drawing { done, total } => {
                write!(f, "makes the first weights, {done} of {total}")
            }
            Self::Exporting {} => write!(f, "waits while the model is read to be written"),
        }
    }
}
