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

use serde::{Deserialize, Serialize, Serializer};
use zbelastic_types::StageIndex;

use crate::kind::{ScheduleKind, UnknownScheduleKind};
use crate::limits::{PASS_COUNT_MAX, TEXT_COUNT_MAX};
use crate::op::{Compute, MemoryOp, Op, OpParseError, Pass};
use crate::packed::{UnpackError, pack, unpack};
use crate::placement::{Placement, PlacementError, PlacementShape, TableError};

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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "ProgramForm")]
pub struct Program {
    /// The schedule it was generated as.
    pub kind: ScheduleKind,
    /// Which stage holds which chunk.
    pub placement: Placement,
    /// Microbatches in a step.
    pub microbatch_count: u32,
    /// Slices that each microbatch's sequences are cut into; 1 where they are not.
    pub slice_count: u32,
    /// `None` as long as only the arithmetic is there; set by [`crate::lower`].
    pub window: Option<Window>,
    /// The operations of each stage, in the order in which it runs them.
    pub stages: Vec<Vec<Op>>,
}

/// A program as it is stored and travels. Slices beyond the first are counted in the upper half of
/// a number whose lower half counts microbatches; the lists are packed.
#[derive(Serialize, Deserialize)]
struct ProgramForm {
    kind: ScheduleKind,
    placement: Placement,
    microbatches: u64,
    window: Option<Window>,
    lists: Vec<u8>,
}

impl Serialize for Program {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { kind, placement, microbatch_count, slice_count, window, stages } = self;
        let microbatches =
            u64::from(slice_count.wrapping_sub(1)) << 32 | u64::from(*microbatch_count);
        let lists = pack(placement, stages);
        let placement = placement.clone();
        let form = ProgramForm { kind: *kind, placement, microbatches, window: *window, lists };
        form.serialize(serializer)
    }
}

impl TryFrom<ProgramForm> for Program {
    type Error = UnpackError;

    fn try_from(form: ProgramForm) -> Result<Self, UnpackError> {
        let ProgramForm { kind, placement, microbatches, window, lists } = form;
        let slice_count = ((microbatches >> 32) as u32).wrapping_add(1);
        let microbatch_count = microbatches as u32;
        let stages = Vec::new();
        let empty = Self { kind, placement, microbatch_count, slice_count, window, stages };
        let passes = empty.pass_count().min(PASS_COUNT_MAX);
        let stages = unpack(&empty.placement, passes, &lists)?;
        Ok(Self { stages, ..empty })
    }
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

    /// Every stage with its operations.
    pub fn lists(&self) -> impl Iterator<Item = (StageIndex, &[Op])> {
        (0..).map(StageIndex).zip(self.stages.iter().map(Vec::as_slice))
    }

    /// The program as it was before it was lowered: passes and operations on their memory.
    #[must_use]
    pub fn arithmetic(&self) -> Self {
        let is_arithmetic = |op: &&Op| match op {
            Op::Compute(compute, _) => *compute != Compute::WE,
            Op::Memory(..) => true,
            Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => false,
        };
        let of_stage = |ops: &Vec<Op>| ops.iter().filter(is_arithmetic).copied().collect();
        Self {
            window: None,
            placement: self.placement.clone(),
            stages: self.stages.iter().map(of_stage).collect(),
            ..*self
        }
    }

    /// Whether it makes one gradient of those of the two ends of the model ([`crate::tie_ends`]).
    #[must_use]
    pub fn is_tied(&self) -> bool {
        let is_tie = |op: &Op| matches!(op, Op::Reduce(reduction, _) if reduction.is_of_tied());
        self.stages.iter().flatten().any(is_tie)
    }

    /// The same without OFFLOAD and RELOAD.
    #[must_use]
    pub fn without_copies(&self) -> Self {
        let mut program = self.clone();
        program.stages.iter_mut().for_each(|ops| ops.retain(|op| !op.is_copy()));
        program
    }

    /// The passes of every stage that `memory` is applied to, in the order of the lists.
    pub fn passes_with(&self, memory: MemoryOp) -> impl Iterator<Item = (StageIndex, Pass)> {
        let with = move |op: &Op| match op {
            Op::Memory(found, pass) if *found == memory => Some(*pass),
            Op::Memory(..)
            | Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..) => None,
        };
        self.lists().flat_map(move |(stage, ops)| {
            ops.iter().filter_map(with).map(move |pass| (stage, pass))
        })
    }

    /// Chunks times microbatches of a replica times slices: each is passed forward and backward once.
    /// No number beyond the largest that can be counted.
    #[must_use]
    pub fn pass_count(&self) -> u64 {
        let per_chunk = self.placement.microbatches_per_replica(self.microbatch_count);
        let microbatches = u64::from(self.placement.chunk_count()) * u64::from(per_chunk);
        microbatches.saturating_mul(u64::from(self.slice_count))
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

fn columns_text(placement: &Placement) -> String {
    let replicas = match placement.column_count() {
        1 => String::new(),
        count => format!(" replicas {count}"),
    };
    let shards = match placement.shards().layers() {
        [] => String::new(),
        shards => format!(" shards {}", joined(shards, u32::to_string)),
    };
    if !placement.is_table() {
        return format!("{replicas}{shards}");
    }
    let cells = placement.table().cells();
    let columns: Vec<_> = cells.chunks(placement.stages_per_column() as usize).collect();
    format!("{replicas} table {}{shards}", joined(&columns, StageIndex::to_string))
}

/// Rows of numbers, with commas in a row and slashes between them.
fn joined<T>(rows: &[impl AsRef<[T]>], text: impl Fn(&T) -> String) -> String {
    let row = |row: &_| AsRef::<[T]>::as_ref(row).iter().map(&text).collect::<Vec<_>>().join(",");
    rows.iter().map(row).collect::<Vec<_>>().join("/")
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "program {} {}{} stages {} chunks {} microbatches {} ",
            self.kind,
            self.placement.shape(),
            columns_text(&self.placement),
            self.placement.stage_count(),
            self.placement.chunk_count(),
            self.microbatch_count,
        )?;
        if self.slice_count != 1 {
            write!(f, "slices {} ", self.slice_count)?;
        }
        match self.window {
            Some(window) => writeln!(f, "window {window}")?,
            None => writeln!(f, "window -")?,
        }
        for (stage, ops) in self.stages.iter().enumerate() {
            write!(f, "stage {stage}:")?;
            for op in ops {
                write!(f, " {}", op.text(self.slice_count))?;
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
         with `slices N` before the window if there are slices, and `replicas D` before the stages \
         if the pipeline is there D times, with `table 0,1/0,2` behind it if it names the stage of \
         each place, replica by replica, and `shards 2,3/4,1` behind that if the optimizer is sharded, with the layers of each shard, chunk \
         by chunk, found \
         `{found}`"
    )]
    Header {
        /// The line as found.
        found: String,
    },
    /// The header's kind is unknown.
    #[error("line 1: {0}")]
    Kind(#[from] UnknownScheduleKind),
    /// Stages and chunks do not form the shape named.
    #[error("line 1: {0}")]
    Placement(#[from] PlacementError),
    /// The table named is none.
    #[error("line 1: {0}")]
    Table(#[from] TableError),
    /// There are more passes than any reader accepts.
    #[error(
        "line 1: expected at most {PASS_COUNT_MAX} passes (chunks times microbatches times \
         slices), found {found}"
    )]
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
        source: OpParseError,
    },
}

/// The shape that a header names.
pub(crate) fn parse_shape(word: &str) -> Option<PlacementShape> {
    match word {
        "line" => Some(PlacementShape::Line),
        "loop" => Some(PlacementShape::Loop),
        "vee" => Some(PlacementShape::Vee),
        "cross" => Some(PlacementShape::Cross),
        _ => None,
    }
}

/// The stages that a table names, column by column.
fn parse_cells(text: &str) -> Option<Vec<StageIndex>> {
    let cells = text.split(['/', ',']).map(|cell| cell.parse().ok().map(StageIndex));
    cells.collect()
}

/// The layers that a header counts in each shard, chunk by chunk.
fn parse_shards(text: &str) -> Option<Vec<Vec<u32>>> {
    let chunk = |text: &str| text.split(',').map(|count| count.parse().ok()).collect();
    text.split('/').map(chunk).collect()
}

/// The program a header announces, still without stages.
fn parse_header(line: &str) -> Result<Program, ProgramParseError> {
    let header = || ProgramParseError::Header { found: line.to_owned() };
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let replicas = if words.get(3) == Some(&"replicas") {
        words.drain(3..words.len().min(5)).nth(1).ok_or_else(header)?
    } else {
        "1"
    };
    let table = if words.get(3) == Some(&"table") {
        let cells = words.drain(3..words.len().min(5)).nth(1).ok_or_else(header)?;
        Some(parse_cells(cells).ok_or_else(header)?)
    } else {
        None
    };
    let shards = if words.get(3) == Some(&"shards") {
        let shards = words.drain(3..words.len().min(5)).nth(1).ok_or_else(header)?;
        Some(parse_shards(shards).ok_or_else(header)?)
    } else {
        None
    };
    let slices = if words.get(9) == Some(&"slices") {
        words.drain(9..words.len().min(11)).nth(1).ok_or_else(header)?
    } else {
        "1"
    };
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
    let shape = parse_shape(shape).ok_or_else(header)?;
    let window = match window {
        "0" => Some(Window::Zero),
        "1" => Some(Window::One),
        "-" => None,
        _ => return Err(header()),
    };
    let columns = count(replicas)?;
    let sizes = (count(stages)?, count(chunks)?);
    let placement = match table {
        Some(cells) => Placement::of_table(shape, columns, sizes, &cells)?,
        None => Placement::of_columns(shape, columns, sizes.0, sizes.1)?,
    };
    let placement = match shards {
        Some(shards) => placement.sharded(shards).map_err(TableError::from)?,
        None => placement,
    };
    let microbatch_count = count(microbatches)?;
    let slice_count = count(slices)?;
    let kind = kind.parse()?;
    let stages = Vec::new();
    Ok(Program { kind, placement, microbatch_count, slice_count, window, stages })
}

impl FromStr for Program {
    type Err = ProgramParseError;

    fn from_str(text: &str) -> Result<Self, ProgramParseError> {
        let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let first = lines().next().map_or("", |(_, line)| line);
        let mut program = parse_header(first)?;
        if program.pass_count() > PASS_COUNT_MAX {
            return Err(ProgramParseError::PassCount { found: program.pass_count() });
        }
        for (line, content) in lines().skip(1) {
            let expected = program.stages.len();
            let ops = content.trim().strip_prefix(&format!("stage {expected}:"));
            let Some(ops) = ops else {
                let found = content.to_owned();
                return Err(ProgramParseError::Stage { line, expected, found });
            };
            let parsed: Result<Vec<Op>, _> = ops.split_whitespace().map(str::parse).collect();
            program.stages.push(parsed.map_err(|source| ProgramParseError::Op { line, source })?);
        }
        let expected = program.placement.stage_count() as usize;
        let found = program.stages.len();
        if found != expected {
            return Err(ProgramParseError::StageCount { expected, found });
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::{Program, ProgramParseError};
    use crate::limits::PASS_COUNT_MAX;
    use crate::op::OpParseError;
    use crate::placement::{PlacementError, PlacementShape};

    const HEADER: &str = "program zb-h1 line stages 2 chunks 2 microbatches 1 window -";

    fn check(text: &str, expected: ProgramParseError) {
        assert_eq!(text.parse::<Program>(), Err(expected));
    }

    #[test]
    fn text_and_program_are_inverses() {
        let text = format!("{HEADER}\nstage 0: 0F0 0B0 0W0\nstage 1: 1F0 1B0 1W0\n");
        let program: Program = text.parse().expect("the text is a program");
        assert_eq!(program.to_string(), text);
        let spaced = format!("\n{HEADER}\n\n  stage 0:  0F0 0B0  0W0\nstage 1: 1F0 1B0 1W0");
        assert_eq!(spaced.parse(), Ok(program));
    }

    #[test]
    fn slices_are_named_where_there_are_several() {
        let header = "program seq1f1b line stages 1 chunks 1 microbatches 1 slices 2 window -";
        let text = format!("{header}\nstage 0: 0F0.0 0F0.1 0BW0.1 0BW0.0\n");
        let program: Program = text.parse().expect("the text is a program");
        assert_eq!((program.slice_count, program.pass_count()), (2, 2));
        assert_eq!(program.to_string(), text);
        let bad = |header: &str| ProgramParseError::Header { found: header.to_owned() };
        for wrong in ["slices 0", "slices", "slices x", "slice 2"] {
            let header = header.replace("slices 2", wrong);
            check(&header, bad(&header));
        }
    }

    #[test]
    fn a_header_says_what_is_wrong_with_it() {
        let header = |found: &str| ProgramParseError::Header { found: found.to_owned() };
        check("", header(""));
        for (right, wrong) in [("stages 2", "stages 0"), ("line", "ring"), ("window -", "window 2")]
        {
            let found = HEADER.replace(right, wrong);
            check(&found, header(&found));
        }
        let shape = PlacementShape::Line;
        let placement = PlacementError { shape, column_count: 1, stage_count: 2, chunk_count: 4 };
        check(&HEADER.replace("chunks 2", "chunks 4"), ProgramParseError::Placement(placement));
        let unknown = HEADER.replace("zb-h1", "zb-h3").parse::<Program>();
        assert!(matches!(unknown, Err(ProgramParseError::Kind(kind)) if kind.found == "zb-h3"));
    }

    #[test]
    fn a_header_cannot_claim_more_memory_than_a_program_may() {
        let header = |count: u32| {
            format!("program gpipe line stages {count} chunks {count} microbatches 8192 window -")
        };
        let expected = 512;
        check(&header(512), ProgramParseError::StageCount { expected, found: 0 });
        check(&header(513), ProgramParseError::PassCount { found: PASS_COUNT_MAX + 8192 });
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let found = "stage 1: 1F0".to_owned();
        let stage = ProgramParseError::Stage { line: 2, expected: 0, found };
        check(&format!("{HEADER}\nstage 1: 1F0"), stage);
        let source = OpParseError::Form { word: "F0".to_owned() };
        check(&format!("{HEADER}\nstage 0: F0"), ProgramParseError::Op { line: 2, source });
        let missing = ProgramParseError::StageCount { expected: 2, found: 1 };
        check(&format!("{HEADER}\nstage 0:"), missing);
    }
}
