//! Classes of frames in the words of an error.

use std::fmt;

use zbelastic_transport::FrameClass;

use super::{
    BOUNDARIES, BOUNDARIES_END, GRADIENTS, GRADIENTS_END, HALVES, HALVES_END, KIND_BITS,
    LAYER_PIECES_MAX, LINK, LINK_END, PARTIAL_EXCHANGES, PARTIAL_PIECES_MAX, PARTIALS, UPDATES,
};

/// What a class is, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameClassName(pub FrameClass);

impl fmt::Display for FrameClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0.0 >> KIND_BITS;
        let kind = self.0.0 & ((1 << KIND_BITS) - 1);
        match kind {
            1 => write!(f, "a boundary tensor")?,
            4..BOUNDARIES_END => write!(f, "a boundary tensor of slice {}", kind - BOUNDARIES)?,
            2 => write!(f, "sums")?,
            3 => write!(f, "a receipt")?,
            GRADIENTS..GRADIENTS_END => {
                write!(f, "piece {} of a stage's gradient", kind - GRADIENTS)?;
            }
            UPDATES..PARTIALS => {
                let layer = (kind - UPDATES) / LAYER_PIECES_MAX;
                let piece = (kind - UPDATES) % LAYER_PIECES_MAX;
                write!(f, "piece {piece} of layer {layer}'s gradient")?;
            }
            PARTIALS.. => {
                let exchange = (kind - PARTIALS) / PARTIAL_PIECES_MAX;
                let piece = (kind - PARTIALS) % PARTIAL_PIECES_MAX;
                let (chunk, exchange) =
                    (exchange / PARTIAL_EXCHANGES, exchange % PARTIAL_EXCHANGES);
                write!(f, "piece {piece} of chunk {chunk}'s exchange {exchange} of gradients")?;
            }
            HALVES..HALVES_END => {
                write!(f, "a boundary tensor of slice {} in bfloat16", kind - HALVES)?;
            }
            LINK => write!(f, "a frame of a link")?,
            0
            | BOUNDARIES_END..HALVES
            | HALVES_END..LINK
            | LINK_END..GRADIENTS
            | GRADIENTS_END..UPDATES => {
                return write!(f, "an unknown class {}", self.0.0);
            }
        }
        write!(f, " of plan {plan}")
    }
}
