//! An asynchronous program: what every stage does during a whole segment of training.
//!
//! ```text
//! asynchronous pipedream line stages 2 chunks 2 pipelines 1 minibatches 2 microbatches 1 update 1
//! stage 0: 0F0@0 0SEND_F0 0F1@0 0SEND_F1 0RECV_B0 0BW0@0 0STASH0 0STEP1 ...
//! stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STEP1 ...
//! ```
//!
//! Microbatches are counted through the segment: those of minibatch 1 follow those of minibatch 0.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, StageIndex};

use super::kind::{AsyncKind, UnknownAsyncKind};
use super::op::{AsyncOp, AsyncOpParseError};
use super::variant::AsyncVariant;
use super::versions::kept_max;
use crate::kind::ScheduleKind;
use crate::limits::TEXT_COUNT_MAX;
use crate::memory::live_passes;
use crate::placement::{Placement, PlacementError, PlacementShape};
use crate::program::{Program, Window, parse_shape};

/// Most passes, chunks times microbatches of the whole segment, an asynchronous program may have.
/// It takes some eight operations of 24 bytes a pass, so at most 200 MiB.
pub const ASYNC_PASS_COUNT_MAX: u64 = 1 << 20;

/// The operations of a segment of training, for every stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AsyncProgram {
    /// The schedule it was generated as.
    pub kind: AsyncKind,
    /// Which stage holds which chunk.
    pub placement: Placement,
    /// Pipelines side by side, each with weights of its own; minibatches are dealt round.
    pub replica_count: u32,
    /// Minibatches of the segment.
    pub minibatch_count: u32,
    /// Microbatches of a minibatch.
    pub microbatch_count: u32,
    /// Gradients of microbatches that make an update.
    pub update_every: u32,
    /// How the schedule is run.
    pub variant: AsyncVariant,
    /// The operations of each stage, in the order in which it runs them.
    pub stages: Vec<Vec<AsyncOp>>,
}

impl AsyncProgram {
    /// Every stage with its operations.
    pub fn lists(&self) -> impl Iterator<Item = (StageIndex, &[AsyncOp])> {
        (0..).map(StageIndex).zip(self.stages.iter().map(Vec::as_slice))
    }

    /// Microbatches of the segment.
    #[must_use]
    pub fn microbatches_total(&self) -> u64 {
        u64::from(self.minibatch_count) * u64::from(self.microbatch_count)
    }

    /// Number of passes: chunks times microbatches of the whole segment.
    #[must_use]
    pub fn pass_count(&self) -> u64 {
        u64::from(self.placement.chunk_count()) * self.microbatches_total()
    }

    /// The minibatch of a microbatch.
    #[must_use]
    pub const fn minibatch_of(&self, microbatch: MicrobatchIndex) -> u32 {
        microbatch.0 / self.microbatch_count
    }

    /// Whether a microbatch runs before the last flush of a warm-up.
    #[must_use]
    pub const fn is_warm_up(&self, microbatch: MicrobatchIndex) -> bool {
        self.minibatch_of(microbatch) < self.variant.warm_up()
    }

    /// The pipeline that a microbatch goes through.
    #[must_use]
    pub const fn replica_of(&self, microbatch: MicrobatchIndex) -> u32 {
        self.minibatch_of(microbatch) % self.replica_count
    }

    /// Microbatches that the stage of `chunk` is ahead with F of those that come back to it: the
    /// chunks behind it in its run over the stages.
    #[must_use]
    pub fn ahead_of(&self, chunk: ChunkIndex) -> u32 {
        let stages = self.placement.stage_count();
        stages - 1 - chunk.0 % stages
    }

    /// Versions that a chunk keeps beside the newest, at most.
    #[must_use]
    pub fn kept_max(&self, chunk: ChunkIndex) -> usize {
        kept_max(self, chunk)
    }

    /// How many passes of each chunk are alive at once, in model order.
    #[must_use]
    pub fn live_passes(&self) -> Vec<u32> {
        let cap = |ops: &Vec<AsyncOp>| match ops[..] {
            [AsyncOp::Dynamic(_, dynamic)] => Some(dynamic.cap),
            _ => None,
        };
        match self.stages.iter().map(cap).collect::<Option<Vec<u32>>>() {
            Some(caps) => caps,
            None => live_passes(&self.plain()).into_iter().map(|live| live.slots).collect(),
        }
    }

    /// The passes and transfers alone, as the rules and readers of synchronous programs take them.
    /// The kind and the window of the result mean nothing.
    ///
    /// # Panics
    /// If the program has more than [`ASYNC_PASS_COUNT_MAX`] passes.
    #[must_use]
    pub fn plain(&self) -> Program {
        assert!(self.pass_count() <= ASYNC_PASS_COUNT_MAX, "the size was checked");
        let plain = |ops: &Vec<AsyncOp>| ops.iter().filter_map(|op| op.plain()).collect();
        let microbatch_count = u32::try_from(self.microbatches_total());
        Program {
            kind: ScheduleKind::OneFOneB,
            placement: self.placement.clone(),
            microbatch_count: microbatch_count.expect("the limit fits"),
            slice_count: 1,
            window: Some(Window::Zero),
            stages: self.stages.iter().map(plain).collect(),
        }
    }
}

impl fmt::Display for AsyncProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "asynchronous {} {} stages {} chunks {} pipelines {} minibatches {} microbatches {} \
             update {}{}",
            self.kind,
            self.placement.shape(),
            self.placement.stage_count(),
            self.placement.chunk_count(),
            self.replica_count,
            self.minibatch_count,
            self.microbatch_count,
            self.update_every,
            self.variant,
        )?;
        for (stage, ops) in self.lists() {
            write!(f, "stage {stage}:")?;
            for op in ops {
                write!(f, " {op}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Why a text is no asynchronous program. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsyncProgramParseError {
    /// The first line is not the header.
    #[error(
        "line 1: expected `asynchronous KIND SHAPE stages P chunks C pipelines N minibatches T \
         microbatches M update U`, with `warm-up N` or `vertical-sync` behind it or nothing, found \
         `{found}`"
    )]
    Header {
        /// The line as found.
        found: String,
    },
    /// The header's kind is unknown.
    #[error("line 1: {0}")]
    Kind(#[from] UnknownAsyncKind),
    /// Stages and chunks do not form the shape named.
    #[error("line 1: {0}")]
    Placement(#[from] PlacementError),
    /// There are more passes than any reader accepts.
    #[error("line 1: expected at most {ASYNC_PASS_COUNT_MAX} passes, found {found}")]
    PassCount {
        /// Number of passes that follows from the header's counts.
        found: u64,
    },
    /// A line does not begin with the stage that is next.
    #[error("line {line}: expected `stage {expected}:`, found `{found}`")]
    Stage {
        /// Number of the line in the text, counted from 1.
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
        /// Number of stage lines in the text.
        found: usize,
    },
    /// A word is no operation.
    #[error("line {line}: {source}")]
    Op {
        /// Number of the line in the text, counted from 1.
        line: usize,
        /// What is wrong with the word.
        source: AsyncOpParseError,
    },
}

/// The program a header announces, still without stages.
fn parse_header(line: &str) -> Result<AsyncProgram, AsyncProgramParseError> {
    let header = || AsyncProgramParseError::Header { found: line.to_owned() };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        "asynchronous",
        kind,
        shape,
        "stages",
        stages,
        "chunks",
        chunks,
        "pipelines",
        pipelines,
        "minibatches",
        minibatches,
        "microbatches",
        microbatches,
        "update",
        update,
        ref variant @ ..,
    ] = words[..]
    else {
        return Err(header());
    };
    let number = |word: &str, max: u64| match word.parse::<u32>() {
        Ok(number) if number >= 1 && u64::from(number) <= max => Ok(number),
        Ok(_) | Err(_) => Err(header()),
    };
    let size = |word: &str| number(word, TEXT_COUNT_MAX.into());
    let long = |word: &str| number(word, ASYNC_PASS_COUNT_MAX);
    // Its pipelines are not replicas that share a step.
    let shape = parse_shape(shape).filter(|shape| *shape != PlacementShape::Cross);
    let shape = shape.ok_or_else(header)?;
    let program = AsyncProgram {
        kind: kind.parse()?,
        placement: Placement::of_shape(shape, size(stages)?, size(chunks)?)?,
        replica_count: size(pipelines)?,
        minibatch_count: long(minibatches)?,
        microbatch_count: size(microbatches)?,
        update_every: size(update)?,
        variant: AsyncVariant::of_words(variant).ok_or_else(header)?,
        stages: Vec::new(),
    };
    match program.pass_count() {
        found if found > ASYNC_PASS_COUNT_MAX => Err(AsyncProgramParseError::PassCount { found }),
        _ => Ok(program),
    }
}

impl FromStr for AsyncProgram {
    type Err = AsyncProgramParseError;

    fn from_str(text: &str) -> Result<Self, AsyncProgramParseError> {
        let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let first = lines().next().map_or("", |(_, line)| line);
        let mut program = parse_header(first)?;
        for (line, content) in lines().skip(1) {
            let expected = program.stages.len();
            let ops = content.trim().strip_prefix(&format!("stage {expected}:"));
            let Some(ops) = ops else {
                let found = content.to_owned();
                return Err(AsyncProgramParseError::Stage { line, expected, found });
            };
            let parsed: Result<Vec<AsyncOp>, _> = ops.split_whitespace().map(str::parse).collect();
            let parsed = parsed.map_err(|source| AsyncProgramParseError::Op { line, source })?;
            program.stages.push(parsed);
        }
        let expected = program.placement.stage_count() as usize;
        let found = program.stages.len();
        if found == expected {
            Ok(program)
        } else {
            Err(AsyncProgramParseError::StageCount { expected, found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ASYNC_PASS_COUNT_MAX, AsyncProgram, AsyncProgramParseError};

    fn check(text: &str, expected: AsyncProgramParseError) {
        assert_eq!(text.parse::<AsyncProgram>(), Err(expected));
    }

    #[test]
    fn text_and_program_are_inverses() {
        let text = "asynchronous pipedream line stages 2 chunks 2 pipelines 1 minibatches 1 \
                    microbatches 1 update 1\n\
                    stage 0: 0F0@0 0SEND_F0 0RECV_B0 0BW0@0 0STEP1\n\
                    stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STEP1\n";
        let program: AsyncProgram = text.parse().expect("the text is a program");
        assert_eq!(program.to_string(), text);
    }

    #[test]
    fn what_is_wrong_with_a_text_is_named() {
        check("program", AsyncProgramParseError::Header { found: "program".into() });
        let header = |minibatches: u64, update: u32| {
            format!(
                "asynchronous xpipe line stages 1 chunks 1 pipelines 1 minibatches {minibatches} \
                 microbatches 2 update {update}"
            )
        };
        check(&header(1, 0), AsyncProgramParseError::Header { found: header(1, 0) });
        let most = ASYNC_PASS_COUNT_MAX / 2;
        let found = ASYNC_PASS_COUNT_MAX + 2;
        check(&header(most + 1, 1), AsyncProgramParseError::PassCount { found });
        check(&header(most, 1), AsyncProgramParseError::StageCount { expected: 1, found: 0 });
        let found = "stage 1: 0F0@0".to_owned();
        let text = format!("{}\n{found}", header(1, 1));
        check(&text, AsyncProgramParseError::Stage { line: 2, expected: 0, found });
    }
}
