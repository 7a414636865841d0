//! The command line as typed.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::case::LifeTicket;
use crate::options::ComputeModelKind;

/// Lives if nothing is said: a few seconds.
const COUNT_DEFAULT: u64 = 100;
/// Threads: more than machines have cores, and few enough to be started.
const JOBS_MAX: usize = 1024;
/// In mixed campaigns every so many-th seed computes with real kernels, which need five to six
/// times as long.
const FLOAT_EVERY: u64 = 30;

/// The text below the help of the command, under either of its names.
pub const EXIT_CODES: &str = "\
Exit codes: 0 every life passed, 2 usage, 10 safety: an invariant was broken, 11 liveness: nothing
moved, 12 panic, 13 the same seed led to something else, 14 the campaign itself: in 1000 lives with
hashes or more, something never happened that must happen now and then. Of several codes, the
lowest.";

/// `chaos`, and `zbelastic chaos sim`.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// Live one seed, and print its options and a line for every change.
    #[arg(long, value_name = "N", group = "work")]
    pub seed: Option<u64>,
    /// With a seed: its life with so many workers, and a stage for each.
    #[arg(long, value_name = "N", requires = "seed", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Option<u32>,
    /// Live so many seeds [default: 100].
    #[arg(long, value_name = "N", group = "work", value_parser = parse_count)]
    pub count: Option<u64>,
    /// Live seeds for so many minutes.
    #[arg(long, value_name = "M", group = "work", value_parser = parse_minutes)]
    pub minutes: Option<Duration>,
    /// Live the case of a file that a campaign has written, and print it like a seed.
    #[arg(long, value_name = "FILE", group = "work")]
    pub replay: Option<PathBuf>,
    /// The first seed of a campaign.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ONE)]
    pub from: u64,
    /// What computes: hashes, a small transformer with the real kernels, or that every 30th seed.
    #[arg(long, value_name = "MODEL", default_value = "mixed", conflicts_with = "replay")]
    pub model: ModelChoice,
    /// What is lived: training, or what members do beside it: stores, texts, trust, clocks.
    #[arg(long, value_name = "WORLD", default_value = "training", conflicts_with = "replay")]
    pub world: WorldChoice,
    /// Threads [default: this machine's cores].
    #[arg(long, value_name = "J", conflicts_with_all = ONE, value_parser = parse_jobs)]
    pub jobs: Option<NonZeroUsize>,
    /// Live every case twice: another life from the same seed is a failure.
    #[arg(long)]
    pub twice: bool,
    /// Folder for the cases that failed, each a file for --replay.
    #[arg(long, value_name = "DIR", default_value = "failures", conflicts_with_all = ONE)]
    pub failures: PathBuf,
    /// Write the cases that failed as they were drawn, not made smaller.
    #[arg(long, conflicts_with_all = ONE)]
    pub no_shrink: bool,
}

/// The arguments that live one case, to which the flags of a campaign mean nothing.
const ONE: [&str; 2] = ["seed", "replay"];

/// The compute models of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelChoice {
    /// A model of hashes instead of floats.
    Digest,
    /// A small transformer with the real kernels.
    Float,
    /// Hashes, and every 30th seed the transformer.
    Mixed,
}

/// The worlds that a campaign lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorldChoice {
    /// Clusters that train, through storms of faults.
    Training,
    /// What members store, which messages they accept and what they repair
    /// ([`crate::housekeeping`]).
    Housekeeping,
}

impl ModelChoice {
    /// A seed, with the compute model of its life.
    #[must_use]
    pub fn ticket(self, seed: u64) -> LifeTicket {
        let model = match self {
            Self::Digest => ComputeModelKind::Digest,
            Self::Float => ComputeModelKind::Float,
            Self::Mixed if seed.is_multiple_of(FLOAT_EVERY) => ComputeModelKind::Float,
            Self::Mixed => ComputeModelKind::Digest,
        };
        LifeTicket { seed, model }
    }
}

/// The task of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimTask {
    /// One seed, line by line.
    Seed(u64),
    /// The case of a file, line by line.
    Replay(PathBuf),
    /// Seeds up to this number of lives.
    Count(u64),
    /// Seeds for so long.
    Minutes(Duration),
}

impl SimArgs {
    /// The task that the arguments select.
    #[must_use]
    pub fn work(&self) -> SimTask {
        let seed = self.seed.map(SimTask::Seed);
        let replay = self.replay.clone().map(SimTask::Replay);
        let minutes = self.minutes.map(SimTask::Minutes);
        let count = || SimTask::Count(self.count.unwrap_or(COUNT_DEFAULT));
        seed.or(replay).or(minutes).unwrap_or_else(count)
    }

    /// Threads of a campaign.
    #[must_use]
    pub fn jobs(&self) -> NonZeroUsize {
        let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(cores)
    }
}

fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if minutes.is_nan() {
        return Err("not a number".to_owned());
    }
    if minutes <= 0.0 {
        return Err("must be more than 0 minutes".to_owned());
    }
    let duration =
        Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("must be more than 0 minutes".to_owned()) } else { Ok(duration) }
}

fn parse_count(text: &str) -> Result<u64, String> {
    let count: u64 = text.parse().map_err(|error| format!("{error}"))?;
    if count == 0 { Err("must be at least 1".to_owned()) } else { Ok(count) }
}

fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    let jobs: usize = text.parse().map_err(|error| format!("{error}"))?;
    if jobs > JOBS_MAX {
        return Err(format!("must be at most {JOBS_MAX}"));
    }
    NonZeroUsize::new(jobs).ok_or_else(|| "must be at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser};

    use super::{ModelChoice, SimArgs, SimTask};
    use crate::options::ComputeModelKind;

    #[derive(Debug, Parser)]
    struct SimCommandLine {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn parse(line: &str) -> Option<SimArgs> {
        let words = ["chaos"].into_iter().chain(line.split_whitespace());
        SimCommandLine::try_parse_from(words).map(|line| line.sim).ok()
    }

    #[test]
    fn there_is_one_thing_to_do() {
        SimCommandLine::command().debug_assert();
        let check =
            |line: &str, expected: SimTask| assert_eq!(parse(line).unwrap().work(), expected);
        check("", SimTask::Count(100));
        check(
            "--count 7 --from 3 --jobs 2 --failures there --no-shrink --twice",
            SimTask::Count(7),
        );
        check("--seed 0 --model float --twice", SimTask::Seed(0));
        check("--minutes 1.5", SimTask::Minutes(Duration::from_secs(90)));
        check("--replay a.json", SimTask::Replay("a.json".into()));
    }

    #[test]
    fn meaningless_arguments_are_refused() {
        let lines = [
            "--seed 1 --count 2",
            "--minutes 1 --count 2",
            "--seed 1 --replay a.json",
            "--seed 1 --from 2",
            "--seed 1 --jobs 2",
            "--replay a.json --failures there",
            "--replay a.json --no-shrink",
            "--replay a.json --model float",
            "--count 0",
            "--minutes 0",
            "--minutes -1",
            "--minutes nan",
            "--jobs 0",
            "--jobs 1025",
            "--model hash",
            "--seed -1",
            "more",
        ];
        for line in lines {
            assert!(parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn every_thirtieth_seed_of_a_mixed_campaign_computes() {
        let floats = |choice: ModelChoice| {
            (1..=90)
                .filter(|seed| choice.ticket(*seed).model == ComputeModelKind::Float)
                .collect::<Vec<_>>()
        };
        assert_eq!(floats(ModelChoice::Mixed), [30, 60, 90]);
        assert_eq!(floats(ModelChoice::Float).len(), 90);
        assert!(floats(ModelChoice::Digest).is_empty());
    }
}
