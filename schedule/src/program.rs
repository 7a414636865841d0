//! A program: what every stage does during one step, as one ordered list of operations a stage.
//!
//! The same data is generated, checked, lowered, simulated, drawn and executed. Whether a stage
//! steps before the verdict is known is not a flag at run time: it is where the gate stands.
//!
//! ```text
//! program zb-h1 line stages 2 chunks 2 microbatches 2 window 1
//! stage 0: 0F0 0SEND_F0 0F1 ...
//! stage 1: 1RECV_F0 1F0 1B0 ...
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zbelastic_types::StageIndex;

use crate::kind::{ScheduleKind, UnknownKind};
use crate::op::{Op, OpParseError};
use crate::placement::{Placement, PlacementShape};

/// How many steps may run ahead of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Window {
    /// None: the gate stands before the step.
    Zero,
    /// One: the gate stands before the first operation of the next step that destroys the
    /// pre-image or the gradient.
    One,
}

/// The operations of one step, for every stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// The schedule it was generated as.
    pub kind: ScheduleKind,
    /// Which stage holds which chunk.
    pub placement: Placement,
    /// Microbatches in a step.
    pub microbatch_count: u32,
    /// `None` as long as only the arithmetic is there; set by [`crate::lower`].
    pub window: Option<Window>,
    /// The operations of each stage, in the order in which it runs them.
    pub stages: Vec<Vec<Op>>,
}

impl Program {
    /// The operations of `stage`.
    ///
    /// # Panics
    /// If the program has no such stage.
    #[must_use]
    pub fn ops(&self, stage: StageIndex) -> &[Op] {
        &self.stages[stage.index()]
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "0",
            Self::One => "1",
        })
    }
}

fn shape_text(shape: PlacementShape) -> &'static str {
    match shape {
        PlacementShape::Line => "line",
        PlacementShape::Loop => "loop",
        PlacementShape::Vee => "vee",
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "program {} {} stages {} chunks {} microbatches {} window ",
            self.kind,
            shape_text(self.placement.shape()),
            self.placement.stage_count(),
            self.placement.chunk_count(),
            self.microbatch_count,
        )?;
        match self.window {
            Some(window) => writeln!(f, "{window}")?,
            None => writeln!(f, "-")?,
        }
        for (stage, ops) in self.stages.iter().enumerate() {
            write!(f, "stage {stage}:")?;
            for op in ops {
                write!(f, " {op}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Why a text is no program. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramParseError {
    /// The first line is not the header.
    #[error(
        "line 1: expected `program KIND SHAPE stages P chunks C microbatches M window 0|1|-`, \
         found `{found}`"
    )]
    Header {
        /// The line as found.
        found: String,
    },
    /// The header's kind is unknown.
    #[error("line 1: {0}")]
    Kind(#[from] UnknownKind),
    /// Stages and chunks do not form the shape named.
    #[error("line 1: {chunk_count} chunks over {stage_count} stages do not form a {shape}")]
    Shape {
        /// The shape named.
        shape: &'static str,
        /// Stages named.
        stage_count: u32,
        /// Chunks named.
        chunk_count: u32,
    },
    /// A line does not begin with the stage that is next.
    #[error("line {line}: expected `stage {expected}:`, found `{found}`")]
    Stage {
        /// The line.
        line: usize,
        /// The stage expected there.
        expected: usize,
        /// The line as found.
        found: String,
    },
    /// The text ends early or goes on too long.
    #[error("expected {expected} stage lines, found {found}")]
    StageCount {
        /// Stages the header names.
        expected: usize,
        /// Stage lines found.
        found: usize,
    },
    /// A word is no operation.
    #[error("line {line}: {source}")]
    Op {
        /// The line.
        line: usize,
        /// What is wrong with the word.
        source: OpParseError,
    },
}

/// Largest stage, chunk or microbatch count a program text may name.
pub const TEXT_COUNT_MAX: u32 = 65_536;

fn parse_header(
    line: &str,
) -> Result<(ScheduleKind, Placement, u32, Option<Window>), ProgramParseError> {
    let header = || ProgramParseError::Header { found: line.to_owned() };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        "program",
        kind,
        shape,
        "stages",
        stages,
        "chunks",
        chunks,
        "microbatches",
        microbatches,
        "window",
        window,
    ] = words[..]
    else {
        return Err(header());
    };
    let count = |word: &str| match word.parse::<u32>() {
        Ok(count) if (1..=TEXT_COUNT_MAX).contains(&count) => Ok(count),
        Ok(_) | Err(_) => Err(header()),
    };
    let (stage_count, chunk_count) = (count(stages)?, count(chunks)?);
    let candidates = match shape {
        "line" => Placement::line(stage_count),
        "loop" => Placement::looped(stage_count, chunk_count.div_ceil(stage_count)),
        "vee" => Placement::vee(stage_count),
        _ => return Err(header()),
    };
    if candidates.chunk_count() != chunk_count {
        let shape = shape_text(candidates.shape());
        return Err(ProgramParseError::Shape { shape, stage_count, chunk_count });
    }
    let window = match window {
        "0" => Some(Window::Zero),
        "1" => Some(Window::One),
        "-" => None,
        _ => return Err(header()),
    };
    Ok((kind.parse()?, candidates, count(microbatches)?, window))
}

impl FromStr for Program {
    type Err = ProgramParseError;

    fn from_str(text: &str) -> Result<Self, ProgramParseError> {
        let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let first = lines().next().map_or("", |(_, line)| line);
        let (kind, placement, microbatch_count, window) = parse_header(first)?;
        let mut stages = Vec::new();
        for (line, content) in lines().skip(1) {
            let expected = stages.len();
            let ops = content.trim().strip_prefix(&format!("stage {expected}:"));
            let Some(ops) = ops else {
                let found = content.to_owned();
                return Err(ProgramParseError::Stage { line, expected, found });
            };
            let parsed: Result<Vec<Op>, _> = ops.split_whitespace().map(str::parse).collect();
            stages.push(parsed.map_err(|source| ProgramParseError::Op { line, source })?);
        }
        let expected = placement.stage_count() as usize;
        if stages.len() != expected {
            return Err(ProgramParseError::StageCount { expected, found: stages.len() });
        }
        Ok(Self { kind, placement, microbatch_count, window, stages })
    }
}
