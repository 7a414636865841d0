//! The commands `chaos` and `zbelastic chaos sim`: a life line by line, or many.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use crate::args::{SimArgs, SimTask, WorldChoice};
use crate::campaign::{Campaign, FAILURES_SHRUNK};
use crate::case::{CaseError, LifeCase, LifeTicket};
use crate::failure::LifeFailure;
use crate::housekeeping;
use crate::life::{LifeResult, live};
use crate::log::EventLog;
use crate::report::{CampaignEnding, CampaignReport};
use crate::shrink::ShrunkCase;
use crate::stopwatch::WallStopwatch;

/// Between two lines about how far a campaign is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Lines that may wait to be printed.
const LINES_WAITING: usize = 1000;

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// There is no case in the file.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// There are not so many seeds.
    #[error("there are no {count} seeds from {from} on: the last one is {last}", last = u64::MAX)]
    Seeds {
        /// First seed of the campaign.
        from: u64,
        /// How many seeds were requested.
        count: u64,
    },
    /// Failures could not be written.
    #[error("no case can be written to {folder}: {source}")]
    Failures {
        /// Path of the folder.
        folder: String,
        /// The error of the file system.
        source: io::Error,
    },
    /// The output accepts no more.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Executes the command that was typed, and returns the exit code. How far a campaign is goes to
/// `progress`, all else to `out`.
///
/// # Errors
/// If a file holds no case, or an output accepts no more.
pub fn run(args: &SimArgs, out: &mut dyn Write, progress: &mut dyn Write) -> Result<u8, SimError> {
    match args.work() {
        SimTask::Seed(seed) if args.world == WorldChoice::Housekeeping => {
            print_housekeeping_life(seed, args.twice, out)
        }
        SimTask::Seed(seed) => {
            let ticket = args.model.ticket(seed);
            let large = args.workers.map(|count| LifeCase::draw_with(seed, ticket.model, count));
            print_life(&large.unwrap_or_else(|| ticket.case()), args.twice, out)
        }
        SimTask::Replay(path) => print_life(&LifeCase::load(&path)?, args.twice, out),
        SimTask::Count(count) => {
            let last = args.from.checked_add(count - 1);
            let last = last.ok_or(SimError::Seeds { from: args.from, count })?;
            let tickets = args.from..=last;
            live_many(args, tickets, out, progress)
        }
        SimTask::Minutes(limit) => {
            let stopwatch = WallStopwatch::start();
            let tickets = (args.from..=u64::MAX).take_while(|_| stopwatch.elapsed() < limit);
            live_many(args, tickets, out, progress)
        }
    }
}

fn print_life(case: &LifeCase, is_twice: bool, out: &mut dyn Write) -> Result<u8, SimError> {
    writeln!(out, "seed {}\n{}", case.seed, case.options)?;
    let life = live_with_log(case, out)?;
    let life = if is_twice { life.same_as(&LifeResult::of(case)) } else { life };
    let outcome = &life.outcome;
    writeln!(
        out,
        "{} steps, {} faults, {} events, {:.3} s",
        outcome.steps,
        outcome.faults,
        outcome.events,
        outcome.virtual_us as f64 / 1e6
    )?;
    writeln!(out, "digest {:016x}", life.digest)?;
    let ending = match &outcome.failure {
        Some(failure) => {
            writeln!(out, "FAILED {failure}")?;
            CampaignEnding::Failed(failure.kind)
        }
        None => {
            writeln!(out, "passed")?;
            CampaignEnding::Passed
        }
    };
    Ok(ending.exit_code())
}

/// The same of a life of housekeeping, which follows from its seed alone.
fn print_housekeeping_life(seed: u64, is_twice: bool, out: &mut dyn Write) -> Result<u8, SimError> {
    writeln!(out, "seed {seed}\n{}", housekeeping::HousekeepingOptions::draw(seed))?;
    let (outcome, digest) = run_with_log(move |log| housekeeping::live(seed, log), out)?;
    let is_other = is_twice && housekeeping::live_quietly(seed) != (outcome.clone(), digest);
    let failure = match is_other {
        true => Some(LifeFailure::non_determinism("the second life was another one")),
        false => outcome.failure,
    };
    writeln!(out, "{} checkpoints\ndigest {digest:016x}", outcome.checkpoints)?;
    match &failure {
        Some(failure) => writeln!(out, "FAILED {failure}")?,
        None => writeln!(out, "passed")?,
    }
    let ending =
        failure.map_or(CampaignEnding::Passed, |failure| CampaignEnding::Failed(failure.kind));
    Ok(ending.exit_code())
}

/// Lives a case on another thread, and prints its lines on this one.
fn live_with_log(case: &LifeCase, out: &mut dyn Write) -> io::Result<LifeResult> {
    run_with_log(move |log| live(case, log), out)
        .map(|(outcome, digest)| LifeResult { outcome, digest })
}

/// Lives on another thread, and prints the lines on this one. Yields the result, and the log's
/// digest.
fn run_with_log<T: Send>(
    life: impl FnOnce(&mut EventLog) -> T + Send,
    out: &mut dyn Write,
) -> io::Result<(T, u64)> {
    let (reader, lines) = sync_channel::<String>(LINES_WAITING);
    thread::scope(|scope| {
        let life = scope.spawn(move || {
            let mut log = EventLog::with_reader(reader);
            let outcome = life(&mut log);
            (outcome, log.digest())
        });
        let written = lines.into_iter().try_for_each(|line| writeln!(out, "{line}"));
        let lived = life.join().expect("what panics in a life is caught");
        written.map(|()| lived)
    })
}

fn live_many_housekeeping(
    args: &SimArgs,
    seeds: impl Iterator<Item = u64> + Send,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> Result<u8, SimError> {
    let stopwatch = WallStopwatch::start();
    let mut printed_at = Duration::ZERO;
    let report = housekeeping::campaign(args.jobs(), args.twice, seeds, |report| {
        let elapsed = stopwatch.elapsed();
        if elapsed >= printed_at + PROGRESS_EVERY {
            printed_at = elapsed;
            let failed = report.failures.len();
            write_progress(progress, &format!("{} lives, {failed} failed", report.lives));
        }
    });
    let seconds = stopwatch.elapsed().as_secs_f64();
    writeln!(out, "{report}\n{} lives in {seconds:.1} s", report.lives)?;
    Ok(report.ending().exit_code())
}

fn live_many(
    args: &SimArgs,
    seeds: impl Iterator<Item = u64> + Send,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> Result<u8, SimError> {
    if args.world == WorldChoice::Housekeeping {
        return live_many_housekeeping(args, seeds, out, progress);
    }
    check_folder(&args.failures)?;
    let campaign = Campaign { jobs: args.jobs(), is_twice: args.twice, live: &LifeResult::of };
    let stopwatch = WallStopwatch::start();
    let mut printed_at = Duration::ZERO;
    let mut failures_printed = 0;
    let report = campaign.run(seeds.map(|seed| args.model.ticket(seed)), |report| {
        let elapsed = stopwatch.elapsed();
        if elapsed >= printed_at + PROGRESS_EVERY {
            printed_at = elapsed;
            write_progress(progress, &progress_line(report, elapsed));
        }
        if report.failed() > failures_printed {
            failures_printed = report.failed();
            let failed = report.failures().map(|life| life.ticket.to_string());
            let failed: Vec<_> = failed.take(FAILURES_SHRUNK).collect();
            write_progress(progress, &format!("failed so far: {}", failed.join(", ")));
        }
    });
    let elapsed = stopwatch.elapsed();
    write!(out, "{report}")?;
    let chosen = report.most_different(FAILURES_SHRUNK);
    let found = if args.no_shrink {
        chosen.into_iter().map(|life| (life.ticket, ShrunkCase::as_drawn(&life))).collect()
    } else {
        if !chosen.is_empty() {
            write_progress(progress, &format!("making {} failures smaller", chosen.len()));
        }
        campaign.shrink(chosen)
    };
    for (ticket, shrunk) in &found {
        writeln!(out, "  {ticket}: {}", save(&args.failures, *ticket, shrunk))?;
    }
    writeln!(out, "{}\n{}", progress_line(&report, elapsed), report.summary())?;
    Ok(report.ending().exit_code())
}

/// A folder in which nothing can be made is reported before lives are lived, and not after. The
/// folder is made when there is something to put in.
fn check_folder(folder: &Path) -> Result<(), SimError> {
    let failures = |source| SimError::Failures { folder: folder.display().to_string(), source };
    let was_there = folder.is_dir();
    fs::create_dir_all(folder).map_err(failures)?;
    try_file_in(folder).map_err(failures)?;
    if was_there { Ok(()) } else { fs::remove_dir(folder).map_err(failures) }
}

/// Makes a file and removes it.
fn try_file_in(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".writable-{}", std::process::id()));
    fs::File::create(&path)?;
    fs::remove_file(&path)
}

/// A campaign goes on if its progress cannot be written.
fn write_progress(progress: &mut dyn Write, line: &str) {
    let _ = writeln!(progress, "{line}");
}

/// How far a campaign is, and how fast.
fn progress_line(report: &CampaignReport, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let virtual_s = report.virtual_us as f64 / 1e6;
    format!(
        "{} lives in {seconds:.1} s, {:.0} a minute; {virtual_s:.0} s lived, {:.0} times as fast; \
         {} steps, {} faults, {} failed",
        report.lives,
        report.lives as f64 * 60.0 / seconds,
        virtual_s / seconds,
        report.steps,
        report.faults,
        report.failed()
    )
}

/// Writes a case that fails, and returns a line that names the file. If it cannot be written, the
/// line holds the error, and the campaign ends as it would: that lives failed matters more.
fn save(folder: &Path, ticket: LifeTicket, shrunk: &ShrunkCase) -> String {
    let path = folder.join(ticket.file_name());
    let file_error = |source| CaseError::File { path: folder.display().to_string(), source };
    let saved = fs::create_dir_all(folder).map_err(file_error);
    if let Err(error) = saved.and_then(|()| shrunk.case.save(&path)) {
        return format!("not written: {error}");
    }
    let options = &shrunk.case.options;
    format!(
        "{} ({} faults, {} workers, {} controllers, {} steps, after {} lives)",
        path.display(),
        shrunk.case.faults.len(),
        options.workers,
        options.controllers,
        options.steps,
        shrunk.lives
    )
}

#[cfg(test)]
mod tests {
    use super::save;
    use crate::args::ModelChoice;
    use crate::case::LifeCase;
    use crate::failure::LifeFailure;
    use crate::report::FailedLife;
    use crate::shrink::ShrunkCase;

    #[test]
    fn a_case_that_fails_is_written_for_a_replay() {
        let ticket = ModelChoice::Mixed.ticket(30);
        let shrunk =
            ShrunkCase::as_drawn(&FailedLife { ticket, failure: LifeFailure::liveness("") });
        let folder = tempfile::tempdir().expect("a folder");
        let said = save(&folder.path().join("new"), ticket, &shrunk);
        let path = folder.path().join("new/seed-30-float.json");
        assert!(said.starts_with(&path.display().to_string()), "{said}");
        assert_eq!(LifeCase::load(&path).expect("written"), shrunk.case);
        let said = save(&path, ticket, &shrunk);
        assert!(said.starts_with("not written: ") && said.contains("seed-30-float.json"), "{said}");
    }
}
