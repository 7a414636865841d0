//! The operations of asynchronous programs, and their text.
//!
//! Passes and transfers are written as in synchronous programs, a pass with `@` and the version of
//! its chunk's weights behind it: `0F3@5`. A version is a number that counts updates, `5+2` is a
//! prediction two updates ahead of version 5, `5-3` version 5 set back by three microbatches, and
//! `5/1` belongs to the second of several pipelines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zbelastic_types::ChunkIndex;

use crate::appearance::{OpAppearance, TimelineMark, TimelineOp};
use crate::op::{Compute, Flow, Op, OpParseError, Pass, Transfer};

/// How far a temporary version lies from the one it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VersionShift {
    /// Not at all: it is no temporary version.
    None,
    /// So many updates ahead.
    Ahead(u32),
    /// So many microbatches back.
    Back(u32),
}

/// Weights of a chunk by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightVersion {
    /// The pipeline whose weights they are; 0 unless there are several side by side.
    pub replica: u32,
    /// Updates behind it. An update that was skipped counts.
    pub base: u32,
    /// The distance of a temporary version from `base`.
    pub shift: VersionShift,
}

impl WeightVersion {
    /// Version number `base` of the first pipeline.
    #[must_use]
    pub const fn new(base: u32) -> Self {
        Self { replica: 0, base, shift: VersionShift::None }
    }

    /// The version it is made of; itself, if it is none that was made.
    #[must_use]
    pub const fn origin(self) -> Self {
        Self { shift: VersionShift::None, ..self }
    }
}

/// How temporary weights are made from a version and what the optimizer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WeightPrediction {
    /// As many of Adam's steps as the distance is long (XPipe).
    Adam,
    /// As many steps along the momentum (SpecTrain).
    Momentum,
    /// Back by the mean change of the weights in so much time (PipeMare).
    Delta,
}

/// Which of the passes that are ready a dynamic region takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DynamicRule {
    /// The pass with the smallest microbatch index.
    Oldest,
    /// The pass with the largest microbatch index.
    Newest,
}

/// A region whose order is found while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DynamicOptions {
    /// Which pass comes first; backward passes come before forward ones.
    pub rule: DynamicRule,
    /// Microbatches that may be in flight.
    pub cap: u32,
    /// Gradients an update is made of.
    pub update_every: u32,
}

/// One operation of an asynchronous program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AsyncOp {
    /// Arithmetic on this version of the chunk's weights.
    Compute(Compute, Pass, WeightVersion),
    /// A boundary tensor changes hands.
    Transfer(Transfer, Flow, Pass),
    /// The chunk's gradient makes this version of the one before.
    Step(ChunkIndex, WeightVersion),
    /// The newest version is made into this temporary one.
    Predict(ChunkIndex, WeightPrediction, WeightVersion),
    /// The newest version is kept beside, so that the next update does not destroy it.
    Stash(ChunkIndex, WeightVersion),
    /// Nobody reads this version again.
    Free(ChunkIndex, WeightVersion),
    /// The newest version and the reference model pull each other together.
    Average(ChunkIndex, WeightVersion),
    /// What is ready runs, until every microbatch went through.
    Dynamic(ChunkIndex, DynamicOptions),
}

impl AsyncOp {
    /// The operation without its version, if a synchronous program can have it.
    #[must_use]
    pub const fn plain(self) -> Option<Op> {
        match self {
            Self::Compute(compute, pass, _) => Some(Op::Compute(compute, pass)),
            Self::Transfer(transfer, flow, pass) => Some(Op::Transfer(transfer, flow, pass)),
            Self::Step(..)
            | Self::Predict(..)
            | Self::Stash(..)
            | Self::Free(..)
            | Self::Average(..)
            | Self::Dynamic(..) => None,
        }
    }

    /// The chunk it is on.
    #[must_use]
    pub const fn chunk(self) -> ChunkIndex {
        match self {
            Self::Compute(_, pass, _) | Self::Transfer(_, _, pass) => pass.chunk,
            Self::Step(chunk, _)
            | Self::Predict(chunk, ..)
            | Self::Stash(chunk, _)
            | Self::Free(chunk, _)
            | Self::Average(chunk, _)
            | Self::Dynamic(chunk, _) => chunk,
        }
    }
}

const PREDICTION_TEXT: [(WeightPrediction, &str); 3] = [
    (WeightPrediction::Adam, "PREDICT_ADAM"),
    (WeightPrediction::Momentum, "PREDICT_MOMENTUM"),
    (WeightPrediction::Delta, "PREDICT_DELTA"),
];

const RULE_TEXT: [(DynamicRule, &str); 2] =
    [(DynamicRule::Oldest, "oldest"), (DynamicRule::Newest, "newest")];

fn text_of<K: Copy + PartialEq>(table: &[(K, &'static str)], key: K) -> &'static str {
    table.iter().find(|(k, _)| *k == key).expect("the table names every variant").1
}

fn key_of<K: Copy>(table: &[(K, &'static str)], text: &str) -> Option<K> {
    table.iter().find(|(_, t)| *t == text).map(|(k, _)| *k)
}

impl fmt::Display for WeightVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        match self.shift {
            VersionShift::None => {}
            VersionShift::Ahead(updates) => write!(f, "+{updates}")?,
            VersionShift::Back(microbatches) => write!(f, "-{microbatches}")?,
        }
        if self.replica > 0 { write!(f, "/{}", self.replica) } else { Ok(()) }
    }
}

impl fmt::Display for AsyncOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(compute, pass, version) => {
                write!(f, "{}@{version}", Op::Compute(*compute, *pass))
            }
            Self::Transfer(transfer, flow, pass) => Op::Transfer(*transfer, *flow, *pass).fmt(f),
            Self::Step(chunk, version) => write!(f, "{chunk}STEP{version}"),
            Self::Predict(chunk, prediction, version) => {
                write!(f, "{chunk}{}{version}", text_of(&PREDICTION_TEXT, *prediction))
            }
            Self::Stash(chunk, version) => write!(f, "{chunk}STASH{version}"),
            Self::Free(chunk, version) => write!(f, "{chunk}FREE{version}"),
            Self::Average(chunk, version) => write!(f, "{chunk}AVERAGE{version}"),
            Self::Dynamic(chunk, DynamicOptions { rule, cap, update_every }) => {
                write!(f, "{chunk}DYNAMIC({},{cap},{update_every})", text_of(&RULE_TEXT, *rule))
            }
        }
    }
}

impl TimelineOp for AsyncOp {
    fn appearance(self) -> OpAppearance {
        match self {
            Self::Compute(compute, pass, version) => {
                OpAppearance::Pass(compute, pass, version.replica)
            }
            Self::Transfer(..) => OpAppearance::Nothing,
            Self::Step(..) => OpAppearance::Mark(TimelineMark::Step),
            Self::Predict(..) => OpAppearance::Mark(TimelineMark::Predict),
            Self::Stash(..) => OpAppearance::Mark(TimelineMark::Stash),
            Self::Free(..) => OpAppearance::Mark(TimelineMark::Free),
            Self::Average(..) => OpAppearance::Mark(TimelineMark::Average),
            Self::Dynamic(..) => OpAppearance::Region,
        }
    }

    fn text(self, _: u32) -> String {
        self.to_string()
    }
}

/// Why a word is no operation of an asynchronous program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsyncOpParseError {
    /// The part before `@`, or the whole of a transfer, is no operation.
    #[error(transparent)]
    Op(#[from] OpParseError),
    /// A pass without a version, or something with a version that has none.
    #[error("`{word}`: expected a version such as 5 behind @ for a pass, and for nothing else")]
    Version {
        /// The word as found.
        word: String,
    },
    /// It looks like an operation on versions, and is none.
    #[error(
        "`{word}` is no operation on versions: expected STEP, STASH, FREE, AVERAGE, PREDICT_ADAM, \
         PREDICT_MOMENTUM or PREDICT_DELTA with a chunk before and a version behind, or \
         DYNAMIC(oldest|newest,CAP,EVERY) with a chunk before"
    )]
    Form {
        /// The word as found.
        word: String,
    },
}

/// A version as [`WeightVersion`] writes it, and in no other spelling.
fn parse_version(text: &str) -> Option<WeightVersion> {
    let (rest, replica) = match text.split_once('/') {
        Some((rest, replica)) => (rest, replica.parse().ok()?),
        None => (text, 0),
    };
    let (base, shift) = if let Some((base, updates)) = rest.split_once('+') {
        (base, VersionShift::Ahead(updates.parse().ok()?))
    } else if let Some((base, microbatches)) = rest.split_once('-') {
        (base, VersionShift::Back(microbatches.parse().ok()?))
    } else {
        (rest, VersionShift::None)
    };
    let version = WeightVersion { replica, base: base.parse().ok()?, shift };
    (version.to_string() == text).then_some(version)
}

fn parse_dynamic(text: &str) -> Option<DynamicOptions> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let [rule, cap, every] = inner.split(',').collect::<Vec<_>>()[..] else { return None };
    let rule = key_of(&RULE_TEXT, rule)?;
    Some(DynamicOptions { rule, cap: cap.parse().ok()?, update_every: every.parse().ok()? })
}

/// An operation on versions, if the letters behind the chunk are those of one.
fn parse_on_versions(word: &str) -> Option<Option<AsyncOp>> {
    let letters_at = word.find(|c: char| !c.is_ascii_digit())?;
    let (chunk, rest) = word.split_at(letters_at);
    let chunk = chunk.parse().ok().map(ChunkIndex)?;
    let tail_at = rest.find(|c: char| c.is_ascii_digit() || c == '(').unwrap_or(rest.len());
    let (letters, tail) = rest.split_at(tail_at);
    let on = |make: fn(ChunkIndex, WeightVersion) -> AsyncOp| {
        parse_version(tail).map(|version| make(chunk, version))
    };
    match letters {
        "STEP" => Some(on(AsyncOp::Step)),
        "STASH" => Some(on(AsyncOp::Stash)),
        "FREE" => Some(on(AsyncOp::Free)),
        "AVERAGE" => Some(on(AsyncOp::Average)),
        "DYNAMIC" => Some(parse_dynamic(tail).map(|dynamic| AsyncOp::Dynamic(chunk, dynamic))),
        _ => key_of(&PREDICTION_TEXT, letters).map(|prediction| {
            parse_version(tail).map(|version| AsyncOp::Predict(chunk, prediction, version))
        }),
    }
}

impl FromStr for AsyncOp {
    type Err = AsyncOpParseError;

    fn from_str(word: &str) -> Result<Self, AsyncOpParseError> {
        if let Some(op) = parse_on_versions(word) {
            return op.ok_or_else(|| AsyncOpParseError::Form { word: word.to_owned() });
        }
        let no_version = || AsyncOpParseError::Version { word: word.to_owned() };
        let (op, version) = match word.split_once('@') {
            Some((op, version)) => (op, Some(parse_version(version).ok_or_else(no_version)?)),
            None => (word, None),
        };
        match (op.parse()?, version) {
            (Op::Compute(compute, pass), Some(version)) => {
                Ok(Self::Compute(compute, pass, version))
            }
            (Op::Transfer(transfer, flow, pass), None) => Ok(Self::Transfer(transfer, flow, pass)),
            (Op::Compute(..), None)
            | (Op::Transfer(..), Some(_))
            | (Op::Update(_) | Op::Reduce(..) | Op::Memory(..), _) => Err(no_version()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AsyncOp, AsyncOpParseError, DynamicOptions, DynamicRule, VersionShift, WeightPrediction,
        WeightVersion,
    };
    use crate::op::{Compute, Flow, OpParseError, Pass, Transfer};
    use zbelastic_types::ChunkIndex;

    #[test]
    fn text_and_operation_are_inverses() {
        let check = |text: &str, op: AsyncOp| {
            assert_eq!(op.to_string(), text);
            assert_eq!(text.parse(), Ok(op));
        };
        let pass = Pass::new(2, 31);
        let chunk = ChunkIndex(2);
        check("2F31@5", AsyncOp::Compute(Compute::F, pass, WeightVersion::new(5)));
        let second = WeightVersion { replica: 1, ..WeightVersion::new(5) };
        check("2BW31@5/1", AsyncOp::Compute(Compute::BW, pass, second));
        check("2RECV_B31", AsyncOp::Transfer(Transfer::Receive, Flow::Backward, pass));
        check("2STEP6", AsyncOp::Step(chunk, WeightVersion::new(6)));
        check(
            "2AVERAGE6/1",
            AsyncOp::Average(chunk, WeightVersion { replica: 1, ..WeightVersion::new(6) }),
        );
        let ahead = WeightVersion { shift: VersionShift::Ahead(2), ..WeightVersion::new(5) };
        check("2PREDICT_ADAM5+2", AsyncOp::Predict(chunk, WeightPrediction::Adam, ahead));
        check("2PREDICT_MOMENTUM5+2", AsyncOp::Predict(chunk, WeightPrediction::Momentum, ahead));
        check("2FREE5+2", AsyncOp::Free(chunk, ahead));
        let back = WeightVersion { shift: VersionShift::Back(3), ..WeightVersion::new(5) };
        check("2PREDICT_DELTA5-3", AsyncOp::Predict(chunk, WeightPrediction::Delta, back));
        check("2STASH5", AsyncOp::Stash(chunk, WeightVersion::new(5)));
        let dynamic = DynamicOptions { rule: DynamicRule::Newest, cap: 4, update_every: 2 };
        check("2DYNAMIC(newest,4,2)", AsyncOp::Dynamic(chunk, dynamic));
    }

    #[test]
    fn a_word_that_is_no_operation_is_named() {
        let check = |word: &str, expected| assert_eq!(word.parse::<AsyncOp>(), Err(expected));
        let version = |word: &str| AsyncOpParseError::Version { word: word.to_owned() };
        let form = |word: &str| AsyncOpParseError::Form { word: word.to_owned() };
        for word in ["0F3", "0F3@", "0F3@x", "0F3@05", "0F3@5/0", "0SEND_F3@5", "REPORT"] {
            check(word, version(word));
        }
        for word in ["0STEP", "0FREE5+", "0STASH5-2-1", "0DYNAMIC", "0DYNAMIC(first,1,1)"] {
            check(word, form(word));
        }
        let letters = OpParseError::Letters { word: "0X1".into(), letters: "X".into() };
        check("0X1@5", AsyncOpParseError::Op(letters));
    }
}
