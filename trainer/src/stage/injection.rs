//! The chaos switch: corrupts a gradient on purpose, to see validation do its work.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zbelastic_kernels::{Backend, BufferView, BufferViewMut};
use zbelastic_types::Step;

use crate::model::LayerState;

/// The corruption of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Corruption {
    /// The first element becomes NaN.
    Nan,
    /// The first element becomes infinite.
    Infinity,
    /// Every element is multiplied by a thousand.
    Thousandfold,
    /// One bit of the first element is flipped; 0 is the last of the mantissa, 31 the sign.
    BitFlip(u8),
}

/// A corruption of one tensor's gradient in one step, after its last W and before its report.
///
/// Written `step=7,tensor=layers.2.mlp.up,value=nan,attempts=1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// The step, counted from 1 as people see it.
    pub step: u64,
    /// Name of the tensor whose gradient is corrupted.
    pub tensor: String,
    /// How the gradient is corrupted.
    pub corruption: Corruption,
    /// On how many runs of the step, from the first on.
    pub attempts: u32,
}

/// Why a text is no injection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectionParseError {
    /// A part is not of the form `key=value`.
    #[error("`{part}` is not of the form key=value")]
    Form {
        /// The part as it was written.
        part: String,
    },
    /// A key is not known, or stands twice.
    #[error(
        "`{key}` is unknown or stands twice; expected each of step, tensor, value, and \
             attempts if wanted"
    )]
    Key {
        /// The key as it was written.
        key: String,
    },
    /// A value cannot be used.
    #[error("`{value}` is no {key}; expected {expected}")]
    Value {
        /// Name of the key whose value cannot be used.
        key: &'static str,
        /// The value as it was written.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// A key is missing.
    #[error("{key} is missing; write step=N,tensor=NAME,value=nan")]
    Missing {
        /// Name of the key that is missing.
        key: &'static str,
    },
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nan => write!(f, "value=nan"),
            Self::Infinity => write!(f, "value=inf"),
            Self::Thousandfold => write!(f, "value=x1000"),
            Self::BitFlip(bit) => write!(f, "bit={bit}"),
        }
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, tensor, corruption, attempts } = self;
        write!(f, "step={step},tensor={tensor},{corruption},attempts={attempts}")
    }
}

fn count(key: &'static str, value: &str) -> Result<u64, InjectionParseError> {
    match value.parse::<u64>() {
        Ok(count) if (1..=u64::from(u32::MAX)).contains(&count) => Ok(count),
        Ok(_) | Err(_) => Err(InjectionParseError::Value {
            key,
            value: value.to_owned(),
            expected: "a whole number from 1",
        }),
    }
}

fn bit(value: &str) -> Result<Corruption, InjectionParseError> {
    match value.parse() {
        Ok(bit) if bit < 32 => Ok(Corruption::BitFlip(bit)),
        Ok(_) | Err(_) => Err(InjectionParseError::Value {
            key: "bit",
            value: value.to_owned(),
            expected: "a whole number from 0 to 31",
        }),
    }
}

/// `value=bit=30` is read as `bit=30`.
fn corruption(value: &str) -> Result<Corruption, InjectionParseError> {
    match value {
        "nan" => Ok(Corruption::Nan),
        "inf" => Ok(Corruption::Infinity),
        "x1000" => Ok(Corruption::Thousandfold),
        _ => match value.strip_prefix("bit=") {
            Some(number) => bit(number),
            None => Err(InjectionParseError::Value {
                key: "value",
                value: value.to_owned(),
                expected: "nan, inf, x1000 or bit=0 to bit=31",
            }),
        },
    }
}

impl FromStr for Injection {
    type Err = InjectionParseError;

    fn from_str(text: &str) -> Result<Self, InjectionParseError> {
        let mut step = None;
        let mut tensor = None;
        let mut what = None;
        let mut attempts = None;
        for part in text.split(',').map(str::trim) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(InjectionParseError::Form { part: part.to_owned() });
            };
            match key {
                "step" if step.is_none() => step = Some(count("step", value)?),
                "tensor" if tensor.is_none() => tensor = Some(value.to_owned()),
                "value" if what.is_none() => what = Some(corruption(value)?),
                "bit" if what.is_none() => what = Some(bit(value)?),
                "attempts" if attempts.is_none() => attempts = Some(count("attempts", value)?),
                _ => return Err(InjectionParseError::Key { key: key.to_owned() }),
            }
        }
        let missing = |key| InjectionParseError::Missing { key };
        Ok(Self {
            step: step.ok_or(missing("step"))?,
            tensor: tensor.ok_or(missing("tensor"))?,
            corruption: what.ok_or(missing("value"))?,
            attempts: attempts.unwrap_or(1) as u32,
        })
    }
}

impl Injection {
    /// Whether it strikes this run of `step`, after so many replays.
    #[must_use]
    pub fn strikes(&self, step: Step, replays: u32) -> bool {
        self.step == step.0 + 1 && replays < self.attempts
    }

    /// Corrupts the gradient, if the tensor is of this layer and is trained. One that two layers share has its name
    /// in both, and is struck in both alike.
    pub fn apply<B: Backend>(&self, backend: &B, layer: &mut LayerState<B>) {
        let name = self.tensor.strip_suffix(".weight").unwrap_or(&self.tensor);
        let Some(tensor) = layer.spec.trained_tensors().find(|tensor| tensor.name == name) else {
            return;
        };
        let all = tensor.state_range().gradient();
        let range = match self.corruption {
            Corruption::Thousandfold => all,
            Corruption::Nan | Corruption::Infinity | Corruption::BitFlip(_) => {
                all.start..all.start + 1
            }
        };
        let mut floats = backend.download(BufferView::new(&layer.g, range.clone()));
        for x in &mut floats {
            *x = match self.corruption {
                Corruption::Nan => f32::NAN,
                Corruption::Infinity => f32::INFINITY,
                Corruption::Thousandfold => *x * 1000.0,
                Corruption::BitFlip(bit) => f32::from_bits(x.to_bits() ^ 1 << bit),
            };
        }
        layer.settle_gradient(backend);
        backend.upload(&floats, BufferViewMut::new(&mut layer.g, range));
    }
}

#[cfg(test)]
mod tests {
    use super::{Corruption, Injection, InjectionParseError};
    use zbelastic_types::Step;

    #[test]
    fn text_and_injection_are_inverses() {
        let check = |text: &str, corruption, attempts| {
            let found: Injection = text.parse().expect("legal");
            let tensor = "layers.2.mlp.up".to_owned();
            assert_eq!(found, Injection { step: 7, tensor, corruption, attempts });
            assert_eq!(found.to_string().parse(), Ok(found));
        };
        check("step=7,tensor=layers.2.mlp.up,value=nan", Corruption::Nan, 1);
        check("step=7, tensor=layers.2.mlp.up, value=inf, attempts=3", Corruption::Infinity, 3);
        check("value=x1000,step=7,tensor=layers.2.mlp.up", Corruption::Thousandfold, 1);
        check("step=7,tensor=layers.2.mlp.up,bit=30", Corruption::BitFlip(30), 1);
        check("step=7,tensor=layers.2.mlp.up,value=bit=0", Corruption::BitFlip(0), 1);
    }

    #[test]
    fn a_text_that_is_no_injection_is_refused_with_the_reason() {
        let check = |text: &str, is_expected: fn(&InjectionParseError) -> bool| {
            let error = text.parse::<Injection>().expect_err("illegal");
            assert!(is_expected(&error), "{text}: {error}");
        };
        check("", |e| matches!(e, InjectionParseError::Form { .. }));
        check("step", |e| matches!(e, InjectionParseError::Form { .. }));
        check("stpe=7", |e| matches!(e, InjectionParseError::Key { .. }));
        check("step=7,step=8", |e| matches!(e, InjectionParseError::Key { .. }));
        check("step=0,tensor=norm,value=nan", |e| matches!(e, InjectionParseError::Value { .. }));
        check("step=1,tensor=norm,value=zero", |e| matches!(e, InjectionParseError::Value { .. }));
        check("step=1,tensor=norm,bit=32", |e| matches!(e, InjectionParseError::Value { .. }));
        check("step=1,value=nan", |e| matches!(e, InjectionParseError::Missing { .. }));
    }

    #[test]
    fn it_strikes_the_named_runs_of_its_step_only() {
        let injection: Injection =
            "step=7,tensor=norm,value=nan,attempts=2".parse().expect("legal");
        let strikes = |step, replays| injection.strikes(Step(step), replays);
        assert!(strikes(6, 0) && strikes(6, 1));
        assert!(!strikes(6, 2) && !strikes(5, 0) && !strikes(7, 0));
    }
}
