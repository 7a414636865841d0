//! The messages for the problems of `train.freeze`.

use zbelastic_trainer::model::{FreezeError, NamePatternError};
use zbelastic_wording::FailureDetail;

use crate::assignment::SettingOrigin;

/// What may be written in place of what is no pattern; `names` says what there is.
pub fn pattern_hint(error: &NamePatternError, names: &str) -> String {
    match error {
        NamePatternError::EmptyPart { .. } => names.to_owned(),
        NamePatternError::Range { first, last, .. } => format!("{last}-{first}"),
    }
}

/// What is wrong with a pattern, or with all of them.
pub fn freeze_detail(at: &SettingOrigin, error: &FreezeError, near: &[String]) -> FailureDetail {
    const ALL_NAMES: &str = "parts of embed, layers.0-7.attn.q, layers.*.mlp.up.bias, norm, head";
    let detail = FailureDetail::new(format!("train.freeze: {error}")).at(at.to_string());
    match error {
        FreezeError::NoTensor { .. } => {
            let why = "the family, the number of layers and what is tied decide which tensors there \
                       are; a tied head is frozen with embed";
            let hint = match near {
                [] => ALL_NAMES.to_owned(),
                near => near.join(", "),
            };
            detail.why(why).hint(hint)
        }
        FreezeError::Pattern(error) => detail.hint(pattern_hint(error, ALL_NAMES)),
        FreezeError::Everything { .. } => {
            detail.why("nothing would be left to train").hint("leave a pattern out")
        }
    }
}
