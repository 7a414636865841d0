//! Why a step's gradient was refused, as events and lines print it.

use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::validation::Reason;
use zbelastic_types::TensorIndex;

/// A reason with the name of the tensor it is about.
#[must_use]
pub fn reason_text(reason: &Reason, name: &dyn Fn(TensorIndex) -> String) -> String {
    let Reason::NonfiniteGradient { tensor, values, tensor_count, .. } = reason else {
        return reason.to_string();
    };
    let values = match values {
        0 => return format!("the sum of squares overflows at {}", name(*tensor)),
        1 => "1 value".to_owned(),
        count => format!("{count} values"),
    };
    let more = match tensor_count {
        0 | 1 => String::new(),
        count => format!(", first of {count} tensors"),
    };
    format!("non-finite gradient in {} ({values}{more})", name(*tensor))
}

/// Why a run goes back.
#[must_use]
pub fn rewind_text(reason: RewindReason) -> String {
    match reason {
        RewindReason::LayerLost { layer } => {
            format!("no copy and no newer checkpoint of layer {layer} survives")
        }
        RewindReason::StateDiffers { layer } => {
            format!("owner and copy of layer {layer} differ, and only a checkpoint can tell")
        }
        RewindReason::Ordered => "ordered".to_owned(),
    }
}
