//! Errors in the input of `schedule` commands.

use std::io;
use std::path::PathBuf;

use zbelastic_config::nearest;
use zbelastic_schedule::asynchronous::{
    AsyncGenerateError, AsyncKind, AsyncProgramParseError, AsyncViolation,
};
use zbelastic_schedule::pytorch;
use zbelastic_schedule::{
    COLUMNS_MAX, ColumnsError, GenerateError, ProgramParseError, ScheduleKind, ScheduleViolation,
    SolveError, TEXT_COUNT_MAX, UnknownScheduleKind,
};
use zbelastic_wording::{CommandFailure, FailureDetail};

/// Broken rules that are listed at most; a program that breaks one breaks it often.
const VIOLATIONS_SHOWN: usize = 20;

/// An error in the input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// No schedule of that name.
    #[error(transparent)]
    Kind(#[from] UnknownScheduleKind),
    /// The schedule does not exist in that size.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// So many pipelines cannot stand side by side.
    #[error(transparent)]
    Columns(#[from] ColumnsError),
    /// Replicas do not have equally many microbatches.
    #[error("{microbatches} microbatches cannot be dealt evenly to {replicas} replicas")]
    ReplicaShares {
        /// Microbatches of a step.
        microbatches: u32,
        /// Pipelines side by side.
        replicas: u32,
    },
    /// The program's file cannot be read.
    #[error("cannot be read: {source}")]
    Unreadable {
        /// Path of the program's file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The program's file holds no program.
    #[error("{source}")]
    Parse {
        /// Path of the program's file.
        path: PathBuf,
        /// Where and why the text is refused.
        source: ProgramParseError,
    },
    /// The program's file is neither a program nor a file of PyTorch's.
    #[error("{source}")]
    ParsePyTorch {
        /// Path of the program's file.
        path: PathBuf,
        /// Where and why the text is refused.
        source: pytorch::ReadError,
    },
    /// The program has no file of PyTorch's.
    #[error(transparent)]
    WritePyTorch(#[from] pytorch::WriteError),
    /// The program breaks rules.
    #[error("{} broken rules", violations.len())]
    Violations {
        /// Path of the program's file.
        path: PathBuf,
        /// The rules that it breaks.
        violations: Vec<ScheduleViolation>,
    },
    /// The asynchronous schedule does not exist in that size.
    #[error(transparent)]
    GenerateAsync(#[from] AsyncGenerateError),
    /// The program's file begins like an asynchronous program, and is none.
    #[error("{source}")]
    ParseAsync {
        /// Path of the program's file.
        path: PathBuf,
        /// Where and why the text is refused.
        source: AsyncProgramParseError,
    },
    /// The asynchronous program breaks rules.
    #[error("{} broken rules", violations.len())]
    ViolationsAsync {
        /// Path of the program's file.
        path: PathBuf,
        /// The rules that it breaks.
        violations: Vec<AsyncViolation>,
    },
    /// A flag that does not apply to the requested schedule.
    #[error("this is for {of}")]
    Foreign {
        /// The flag, such as `--mf`.
        flag: &'static str,
        /// The schedules that the flag is for.
        of: &'static str,
    },
    /// Neither 0 nor 1.
    #[error("expected 0 or 1, found `{found}`")]
    Window {
        /// The text that was given.
        found: String,
    },
    /// Not a number that can be used.
    #[error("expected {expected}, found `{found}`")]
    Number {
        /// The flag, such as `--mf`.
        flag: &'static str,
        /// The values that are allowed.
        expected: &'static str,
        /// The text that was given.
        found: String,
    },
    /// A list that is neither for all stages nor one value a stage.
    #[error("expected 1 or {expected} values, found {found}")]
    Length {
        /// The flag, such as `--mf`.
        flag: &'static str,
        /// Stages of the pipeline.
        expected: u32,
        /// Number of values in the list.
        found: usize,
    },
    /// Not a time for each slice.
    #[error("expected {expected} numbers, one a slice and not all 0, found `{found}`")]
    SliceTimes {
        /// The slices of a microbatch.
        expected: u32,
        /// The text that was given.
        found: String,
    },
    /// Memory that does not add up.
    #[error("--mf plus --mb is {sum} on stage {stage}, but --mw is {after_b}")]
    MemorySum {
        /// Index of the stage, from 0.
        stage: usize,
        /// The memory that F keeps, changed by B.
        sum: f64,
        /// The memory kept after B according to `--mw`.
        after_b: f64,
    },
    /// A problem that has no solution.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// Microbatches that cannot be shared.
    #[error("{copies} copies cannot share {found} microbatches evenly")]
    Copies {
        /// Copies of the pipeline.
        copies: u32,
        /// Microbatches of a step.
        found: u32,
    },
    /// B gives back more than there is.
    #[error("--mf plus --mb is {sum} on stage {stage}, less than nothing")]
    NegativeMemory {
        /// Index of the stage, from 0.
        stage: usize,
        /// The memory that F keeps, changed by B.
        sum: f64,
    },
}

/// The failure that lists all of `errors`.
pub fn failure(errors: Vec<InputError>) -> CommandFailure {
    let details = errors.iter().flat_map(InputError::details).collect();
    CommandFailure::usage("the schedule", details)
}

impl InputError {
    fn details(&self) -> Vec<FailureDetail> {
        let detail = FailureDetail::new(self.to_string());
        let detail = match self {
            Self::Kind(UnknownScheduleKind { found }) => kind_hint(detail.at("--kind"), found),
            Self::Generate(error) => size_hint(detail, error),
            Self::Columns(_) => detail
                .at("--replicas")
                .hint(format!("--replicas 2, 4 or another power of two up to {COLUMNS_MAX}")),
            Self::ReplicaShares { microbatches, replicas } => {
                let above = microbatches.next_multiple_of((*replicas).max(1));
                detail.at("--replicas").hint(format!("--microbatches {above}, or --replicas 1"))
            }
            Self::Unreadable { path, .. }
            | Self::Parse { path, .. }
            | Self::ParseAsync { path, .. }
            | Self::ParsePyTorch { path, .. } => detail.at(path.display().to_string()).hint(
                "`zbelastic schedule simulate .. --program-text` prints a program to begin with",
            ),
            Self::Violations { path, violations } => {
                return violation_details(&path.display().to_string(), violations);
            }
            Self::ViolationsAsync { path, violations } => {
                return violation_details(&path.display().to_string(), violations);
            }
            Self::GenerateAsync(error) => async_size_hint(detail, error),
            Self::Foreign { flag, .. } => detail.at(*flag).hint(format!("leave out {flag}")),
            Self::WritePyTorch(_) => {
                let hint =
                    "`schedule simulate .. --program-text` writes it, and zbelastic reads that";
                detail.at("--pytorch").hint(hint)
            }
            Self::Window { .. } => detail.at("--window"),
            Self::Number { flag, .. } => detail.at(*flag),
            Self::Length { flag, .. } => {
                detail.at(*flag).hint("one value for all stages, or one a stage, with commas")
            }
            Self::SliceTimes { .. } => detail.at("--slice-times"),
            Self::MemorySum { .. } => detail
                .at("--mb")
                .why("what B leaves is what W needs: both say the same")
                .hint("leave out --mb or --mw"),
            Self::Solve(error) => solve_hint(detail, error),
            Self::Copies { copies, found } => {
                let above = found.next_multiple_of(*copies);
                detail.at("--data-parallel").hint(format!("--microbatches {above}"))
            }
            Self::NegativeMemory { .. } => {
                detail.at("--mb").why("B cannot give back more than F kept")
            }
        };
        vec![detail]
    }
}

fn solve_hint(detail: FailureDetail, error: &SolveError) -> FailureDetail {
    match error {
        SolveError::Limit { needed, .. } => detail
            .at("--mem-limit")
            .why("one microbatch at a time is the least")
            .hint(format!("--mem-limit {needed} or more")),
        SolveError::Memory { after_forward, .. } => {
            detail.at("--mw").hint(format!("--mw {after_forward} or less"))
        }
        SolveError::Drop { after_forward, .. } => {
            detail.at("--md").hint(format!("--md {after_forward} or less"))
        }
        SolveError::NoOrder => detail.at("--mem-limit"),
        SolveError::NoMicrobatch => detail.at("--microbatches"),
        SolveError::Shape { .. } | SolveError::Count { .. } | SolveError::Number { .. } => detail,
    }
}

fn kind_hint(detail: FailureDetail, found: &str) -> FailureDetail {
    if found.parse::<AsyncKind>().is_ok() {
        let why = "it is asynchronous: it has no step to solve";
        return detail.why(why).hint(format!("zbelastic schedule simulate --kind {found}"));
    }
    let asynchronous = || nearest(found, AsyncKind::ALL.map(AsyncKind::name));
    match nearest(found, ScheduleKind::ALL.map(ScheduleKind::name)).or_else(asynchronous) {
        Some(name) => detail.hint(name),
        None => detail.hint("`zbelastic schedule list` tells them apart"),
    }
}

fn size_hint(detail: FailureDetail, error: &GenerateError) -> FailureDetail {
    match error {
        GenerateError::StageCount { max, .. } => {
            detail.at("--stages").hint(format!("--stages 1 to {max}"))
        }
        GenerateError::ChunkCount { expected, .. } => {
            detail.at("--chunks").hint(format!("--chunks {}", expected.least()))
        }
        GenerateError::MicrobatchCount { .. } => {
            detail.at("--microbatches").hint(format!("--microbatches 1 to {TEXT_COUNT_MAX}"))
        }
        GenerateError::PassCount { .. } => {
            detail.at("--microbatches").why("a program of that size would take gigabytes")
        }
        GenerateError::FewMicrobatches { least, .. } => {
            detail.at("--microbatches").hint(format!("--microbatches {least} or more"))
        }
        GenerateError::OddMicrobatches { found, .. } => detail
            .at("--microbatches")
            .why("each direction runs as many microbatches as the other")
            .hint(format!("--microbatches {} or {}", found - 1, found + 1)),
        GenerateError::OddStages { found, .. } => detail
            .at("--stages")
            .why("two directions meet in one slot of the middle stage")
            .hint(match found - 1 {
                0 => "--stages 2".to_owned(),
                below => format!("--stages {below} or {}", found + 1),
            }),
        GenerateError::SliceCount { kind, .. } => detail.at("--slices").hint(if kind.is_sliced() {
            format!("--slices 1 to {TEXT_COUNT_MAX}")
        } else {
            format!("--kind {}, or leave out --slices", ScheduleKind::Seq1F1B)
        }),
        GenerateError::UnevenGroups { stage_count, microbatch_count } => {
            let above = microbatch_count.next_multiple_of(*stage_count);
            detail.at("--microbatches").hint(match above - stage_count {
                0 => format!("--microbatches {above}"),
                below => format!("--microbatches {below} or {above}"),
            })
        }
    }
}

fn async_size_hint(detail: FailureDetail, error: &AsyncGenerateError) -> FailureDetail {
    match error {
        AsyncGenerateError::Count { name, max, .. } => {
            let flag = match *name {
                "stages" => "--stages",
                "minibatches" => "--steps",
                "microbatches" => "--microbatches",
                "pipelines" => "--pipelines",
                "microbatches under way" => "--cap",
                "gradients an update" => "--update-every",
                other => unreachable!("{other} has a flag"),
            };
            detail.at(flag).hint(format!("{flag} 1 to {max}"))
        }
        AsyncGenerateError::PassCount { .. } => {
            detail.at("--steps").hint("fewer --steps, or fewer --microbatches")
        }
        AsyncGenerateError::FewMicrobatches { stage_count, .. } => detail
            .at("--microbatches")
            .why("a version must be complete before it is read a step later")
            .hint(format!("--microbatches {stage_count} or more")),
        AsyncGenerateError::Variant { kind, .. } => {
            unreachable!("{kind} is asked for what it has")
        }
        AsyncGenerateError::UnevenPipelines { minibatch_count, replica_count } => {
            let above = minibatch_count.next_multiple_of(*replica_count);
            detail
                .at("--steps")
                .why("pipelines take steps in turn")
                .hint(format!("--steps {above}"))
        }
    }
}

fn violation_details(place: &str, violations: &[impl ToString]) -> Vec<FailureDetail> {
    let shown = violations.iter().take(VIOLATIONS_SHOWN);
    let mut details: Vec<FailureDetail> =
        shown.map(|violation| FailureDetail::new(violation.to_string()).at(place)).collect();
    let more = violations.len().saturating_sub(VIOLATIONS_SHOWN);
    if more > 0 {
        details.push(FailureDetail::new(format!("{more} more of the kind")).at(place));
    }
    details
}
