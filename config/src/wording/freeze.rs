//! The messages for the problems of patterns over names: of `train.freeze` and `optimizer.decay_groups`.

use zbelastic_trainer::model::{FreezeError, NamePatternError};
use zbelastic_trainer::optimizer::DecayGroupError;
use zbelastic_wording::FailureDetail;

use crate::assignment::SettingOrigin;

const ALL_NAMES: &str = "parts of embed, layers.0-7.attn.q, layers.*.mlp.up.bias, norm, head";

/// What may be written in place of what is no pattern; `names` says what there is.
pub fn pattern_hint(error: &NamePatternError, names: &str) -> String {
    match error {
        NamePatternError::EmptyPart { .. } => names.to_owned(),
        NamePatternError::Range { first, last, .. } => format!("{last}-{first}"),
    }
}

/// What is wrong with a pattern, or with all of them.
pub fn freeze_detail(at: &SettingOrigin, error: &FreezeError, near: &[String]) -> FailureDetail {
    let detail = FailureDetail::new(format!("train.freeze: {error}")).at(at.to_string());
    match error {
        FreezeError::NoTensor { .. } => {
            let why = "the family, the number of layers and what is tied decide which tensors there \
                       are; a tied head is frozen with embed";
            detail.why(why).hint(near_hint(near))
        }
        FreezeError::Pattern(error) => detail.hint(pattern_hint(error, ALL_NAMES)),
        FreezeError::Everything { .. } => {
            detail.why("nothing would be left to train").hint("leave a pattern out")
        }
    }
}

/// The names that may have been meant, or what names there are.
fn near_hint(near: &[String]) -> String {
    if near.is_empty() { ALL_NAMES.to_owned() } else { near.join(", ") }
}

/// What is wrong with a group of weight decay.
pub fn decay_group_detail(
    at: &SettingOrigin,
    error: &DecayGroupError,
    near: &[String],
) -> FailureDetail {
    let detail = FailureDetail::new(format!("optimizer.decay_groups: {error}")).at(at.to_string());
    match error {
        DecayGroupError::Form { .. } => detail
            .why("a group is a pattern over names of tensors and the rate of those that it matches")
            .hint("layers.*.norm*=0, embed=0.01"),
        DecayGroupError::Rate { .. } => detail
            .why("weights decay by the rate times the learning rate in each step")
            .hint("0 for no decay"),
        DecayGroupError::NoTensor { .. } => {
            let why = "the family, the number of layers and what is tied decide which tensors there \
                       are; a tied head decays with embed";
            detail.why(why).hint(near_hint(near))
        }
        DecayGroupError::Pattern(error) => detail.hint(pattern_hint(error, ALL_NAMES)),
    }
}
