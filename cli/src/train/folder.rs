//! The run folder: the files of a run.
//!
//! ```text
//! config.toml      the effective configuration, which `train` reads back
//! metrics.jsonl    one object a line, as `--json` prints them; when it is long, the lines before are
//!                  in metrics.jsonl.1
//! run.json         the run: its model, text and plan, and how it ended
//! report.html      the page of the run, in one file
//! tensorboard/     event files with the run's scalars
//! trace.json       the last steps for Perfetto, planned and measured
//! order.txt        the order that an asynchronous run found, if it was to find one
//! sample.txt       generated text
//! model/           config.json and model.safetensors with Hugging Face's names; the tokenizer's
//!                  files, from the beginning of the run; of a run with `lora.rank` the merged
//!                  model, and its adapters in adapter/ with PEFT's names
//! tokens/          the token store that was made of the run's text, if it names a tokenizer
//! cluster/         the folders of the processes that trained
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use zbelastic_config::{RunConfig, check_no_island, load_recorded};
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_whole_file::{self as whole_file, RotatedLines};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

use super::scalar_log::ScalarLog;
use crate::run_files::{
    CLUSTER, CONFIG, METRICS, METRICS_BYTES_MAX, MODEL, REPORT, RUN, RUNS, SAMPLE, TENSORBOARD,
    TRACE,
};

const ALL: [&str; 8] = [CONFIG, METRICS, RUN, TRACE, SAMPLE, MODEL, REPORT, TENSORBOARD];

/// Folders of one name below it.
const RUNS_MAX: u32 = 9_999;

/// The run that a folder is opened for.
#[derive(Clone, Copy, Debug)]
pub struct RunFolderRequest<'a> {
    /// Configuration of the run.
    pub config: &'a RunConfig,
    /// The same as the folder holds it: a line with workers and threads, then the effective keys.
    pub text: &'a str,
    /// Whether it may go on from a run of other arithmetic.
    pub may_branch: bool,
}

/// How a run begins in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStart {
    /// Nothing was in the folder.
    New,
    /// It was interrupted there.
    Resumed,
    /// From the last checkpoint of the run that is there: only settings that change no bit differ
    /// from those it had.
    ResumedFromCheckpoint,
    /// From the last checkpoint of the run that is there, by a configuration that makes other bits.
    Branched,
}

/// A folder that belongs to one run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    start: RunStart,
    metrics: RotatedLines,
    /// Locked for this process. Files of it are replaced while the run goes on, the folder is not.
    _lock: File,
    /// Scalars for TensorBoard, from the first step on.
    scalars: Option<ScalarLog>,
    /// Whether no metrics were written yet.
    is_empty: bool,
}

impl RunFolder {
    /// The folder `out`, or the first that is free of `runs/<name>-1` and so on; with the
    /// configuration in it, so that one that cannot be written is found before training starts.
    /// One in which processes trained and were interrupted goes on, if the configuration makes the
    /// same bits.
    ///
    /// # Errors
    /// If it cannot be written, or holds another run, or one that is done.
    pub fn open(
        out: Option<&Path>,
        name: &str,
        request: RunFolderRequest<'_>,
    ) -> Result<Self, CommandFailure> {
        let Some(path) = out else { return Self::create(out, name, request.text) };
        let run_start = start_in(path, request)?;
        if run_start == RunStart::New {
            return Self::create(out, name, request.text);
        }
        let lock = take(path)?;
        Ok(Self {
            path: path.to_owned(),
            start: run_start,
            metrics: open_metrics(path, METRICS_BYTES_MAX)?,
            _lock: lock,
            scalars: None,
            is_empty: false,
        })
    }

    /// How the run begins.
    #[must_use]
    pub const fn start(&self) -> RunStart {
        self.start
    }

    pub(super) fn create(
        out: Option<&Path>,
        name: &str,
        config: &str,
    ) -> Result<Self, CommandFailure> {
        let path = match out {
            Some(path) => take_folder(path)?,
            None => first_free(Path::new(RUNS), name)?,
        };
        let lock = take(&path)?;
        write_file(&path.join(CONFIG), config.as_bytes())?;
        let metrics = open_metrics(&path, METRICS_BYTES_MAX)?;
        Ok(Self { path, start: RunStart::New, metrics, _lock: lock, scalars: None, is_empty: true })
    }

    /// Removes the folder of a run that did not begin, so that its place is free for the next.
    pub fn discard_if_empty(self) {
        if !self.is_empty {
            return;
        }
        // A file that cannot be removed stays; the failure that led here is the one to report.
        for name in [CONFIG, METRICS] {
            let _ = fs::remove_file(self.path.join(name));
        }
        // It was made for this run, and has nothing but the tokenizer yet.
        let model = self.path.join(MODEL);
        for name in TokenizerFiles::NAMES {
            let _ = fs::remove_file(model.join(name));
        }
        let _ = fs::remove_dir(model);
        let _ = fs::remove_dir(&self.path);
    }

    /// Path of the run folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line to the metrics. It is with the system when this returns: a run that is killed
    /// keeps the lines written before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append_metrics(&mut self, line: &str) -> Result<(), CommandFailure> {
        self.is_empty = false;
        self.metrics.write(line).map_err(|error| no_place(&self.path.join(METRICS), &error))
    }

    /// Adds scalars of a step for TensorBoard.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append_scalars(
        &mut self,
        step: u64,
        at_ms: u64,
        scalars: &[(&str, f64)],
    ) -> Result<(), CommandFailure> {
        let log = match &mut self.scalars {
            Some(log) => log,
            none => {
                let created = ScalarLog::create(&self.path, at_ms);
                let created =
                    created.map_err(|error| no_place(&self.path.join(TENSORBOARD), &error))?;
                none.insert(created)
            }
        };
        let appended = log.append(at_ms, step, scalars);
        appended.map_err(|error| no_place(log.path(), &error))
    }

    /// Writes one of the other files.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), CommandFailure> {
        write_file(&self.path.join(name), text.as_bytes())
    }
}

/// A place that cannot be written, with the remedy.
pub(super) fn no_place(path: &Path, error: &io::Error) -> CommandFailure {
    let mut failure = cannot_write(path, error);
    let detail = FailureDetail::new("a run needs a folder that can be made and written");
    failure.details =
        vec![detail.at("--out").hint("--out with another folder, or space on the disk")];
    failure
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CommandFailure> {
    whole_file::write(path, bytes).map_err(|error| no_place(path, &error))
}

fn open_metrics(folder: &Path, bytes_max: u64) -> Result<RotatedLines, CommandFailure> {
    let path = folder.join(METRICS);
    RotatedLines::open(&path, bytes_max).map_err(|error| no_place(&path, &error))
}

/// Locks a folder for this process. The lock is the system's: it ends with the process.
fn take(path: &Path) -> Result<File, CommandFailure> {
    let folder = File::open(path).map_err(|error| no_place(path, &error))?;
    match folder.try_lock() {
        // A file system that knows no locks is trusted to have one user.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
        Err(TryLockError::WouldBlock) => {
            let what = format!("{} is in use", path.display());
            let mut failure = CommandFailure::new(FailureCode::WrongState, what);
            let detail = FailureDetail::new("a run is under way there").at("--out");
            failure.details = vec![detail.hint("wait for its end, or another folder")];
            Err(failure)
        }
    }
}

/// The end of a run as `run.json` records it.
fn recorded_end(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&fs::read(path.join(RUN)).ok()?).ok()
}

/// Whether `run.json` records that the run was interrupted.
fn ended_early(path: &Path) -> bool {
    recorded_end(path).is_some_and(|run| run["interrupted"] == true)
}

/// How a run begins in a folder that may hold one. A branch accepts a folder of a run that is done
/// as well.
fn start_in(path: &Path, request: RunFolderRequest<'_>) -> Result<RunStart, CommandFailure> {
    if !path.join(CLUSTER).is_dir() {
        return Ok(RunStart::New);
    }
    let held = match fs::read_to_string(path.join(CONFIG)) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RunStart::New),
        Err(error) => return Err(no_place(&path.join(CONFIG), &error)),
    };
    let is_done = path.join(RUN).exists() && !ended_early(path);
    if keys_of(&held) == keys_of(request.text) {
        return Ok(if is_done { RunStart::New } else { RunStart::Resumed });
    }
    let known = load_recorded(&path.join(CONFIG).display().to_string(), &held);
    let known = known.ok().map(|known| known.config);
    if !is_done && known.as_ref().is_some_and(|known| known.makes_same_bits(request.config)) {
        Ok(RunStart::ResumedFromCheckpoint)
    } else if request.may_branch {
        check_branch(path, known.as_ref(), request.config).map(|()| RunStart::Branched)
    } else if is_done {
        Ok(RunStart::New)
    } else {
        Err(other_configuration(path))
    }
}

/// The settings that a branch must have in common with the run that it goes on from, checked
/// before that is ended.
fn check_branch(
    path: &Path,
    known: Option<&RunConfig>,
    config: &RunConfig,
) -> Result<(), CommandFailure> {
    let other = |key: &str| {
        let what = format!("{} holds a run with another {key}", path.display());
        let mut failure = CommandFailure::new(FailureCode::WrongState, what);
        let detail = FailureDetail::new(format!("see its {CONFIG}")).at("--branch");
        failure.details = vec![detail.hint("the same keys there; or another folder")];
        Err(failure)
    };
    check_no_island(config, "--branch")?;
    match known {
        Some(known) if !known.model.has_shape_of(&config.model) => other("[model]"),
        Some(known) if known.checkpoint.folder != config.checkpoint.folder => {
            other("checkpoint.dir")
        }
        Some(_) => Ok(()),
        None => other("form of its configuration, which cannot be read,"),
    }
}

/// The effective keys, without the line of workers and threads, which change no bit of a run.
fn keys_of(text: &str) -> &str {
    if text.starts_with('#') { text.split_once('\n').map_or("", |(_, keys)| keys) } else { text }
}

fn other_configuration(path: &Path) -> CommandFailure {
    let what = format!("{} holds a run with another configuration", path.display());
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    let detail = FailureDetail::new(format!("it was interrupted; see its {CONFIG}")).at("--out");
    let why = "what changed changes the result";
    let hint =
        "with --branch it goes on with what changed; or the keys it began with, or another folder";
    failure.details = vec![detail.why(why).hint(hint)];
    failure
}

/// A branch has begun behind `step`: the folder's configuration is its own from now on. The one before
/// is put aside under that number, and the files that a run that was done left under the number of its
/// steps. Returns the name of the file with the configuration before.
///
/// # Errors
/// If something cannot be read, renamed or written.
pub fn begin_branch(path: &Path, config: &str, step: u64) -> Result<String, CommandFailure> {
    let aside = put_config_aside(path, step)?;
    if let Some(run) = recorded_end(path).filter(|run| run["interrupted"] != true) {
        let steps = run["steps"].as_u64().unwrap_or_default();
        for (name, aside) in [
            (MODEL, format!("model-{steps}")),
            (SAMPLE, format!("sample-{steps}.txt")),
            (TRACE, format!("trace-{steps}.json")),
            (REPORT, format!("report-{steps}.html")),
            // The last one: as long as it is there, the files left are put aside by the next
            // attempt.
            (RUN, format!("run-{steps}.json")),
        ] {
            match fs::rename(path.join(name), path.join(aside)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(no_place(&path.join(name), &error));
                }
                Ok(()) | Err(_) => {}
            }
        }
    }
    write_file(&path.join(CONFIG), config.as_bytes())?;
    Ok(aside)
}

/// Copies the configuration: a folder without one would be none of a run. Several branches may begin
/// at one step, and a copy that is there already is of an attempt that was killed behind it.
fn put_config_aside(path: &Path, step: u64) -> Result<String, CommandFailure> {
    let known =
        fs::read(path.join(CONFIG)).map_err(|error| no_place(&path.join(CONFIG), &error))?;
    let names = iter::once(format!("config-{step}.toml"))
        .chain((2..=RUNS_MAX).map(|number| format!("config-{step}-{number}.toml")));
    for name in names {
        let aside = path.join(&name);
        match fs::read(&aside) {
            Ok(held) if held == known => return Ok(name),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return write_file(&aside, &known).map(|()| name);
            }
            Err(error) => return Err(no_place(&aside, &error)),
        }
    }
    let what = format!("{} holds {RUNS_MAX} configurations of step {step}", path.display());
    Err(CommandFailure::new(FailureCode::WrongState, what))
}

fn take_folder(path: &Path) -> Result<PathBuf, CommandFailure> {
    check_holds_no_run(path)?;
    fs::create_dir_all(path).map_err(|error| no_place(path, &error))?;
    Ok(path.to_owned())
}

/// Refuses a folder of a run that no command goes on with, whatever its configuration, before
/// anything is made in it.
pub(super) fn check_can_begin(path: &Path, may_branch: bool) -> Result<(), CommandFailure> {
    let is_of_processes = path.join(CLUSTER).is_dir();
    let is_done = path.join(RUN).exists() && !ended_early(path);
    if is_of_processes && (may_branch || !is_done) { Ok(()) } else { check_holds_no_run(path) }
}

fn check_holds_no_run(path: &Path) -> Result<(), CommandFailure> {
    let held: Vec<&str> = ALL.into_iter().filter(|name| path.join(name).exists()).collect();
    if !held.is_empty() {
        let what = format!("{} holds a run already", path.display());
        let mut failure = CommandFailure::new(FailureCode::WrongState, what);
        let detail = FailureDetail::new(format!("there is {}", held.join(", "))).at("--out");
        failure.details = vec![
            detail
                .why("a run never writes over another")
                .hint("another folder; or --branch, where processes trained, with other keys"),
        ];
        return Err(failure);
    }
    Ok(())
}

fn first_free(parent: &Path, name: &str) -> Result<PathBuf, CommandFailure> {
    fs::create_dir_all(parent).map_err(|error| no_place(parent, &error))?;
    for number in 1..=RUNS_MAX {
        let path = parent.join(format!("{name}-{number}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(no_place(&path, &error)),
        }
    }
    let what = format!("{} is full: {RUNS_MAX} runs of {name}", parent.display());
    Err(CommandFailure::new(FailureCode::WrongState, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_name_are_numbered() {
        let parent = tempfile::tempdir().expect("a folder");
        let runs = parent.path().join("runs");
        for number in 1..=3 {
            assert_eq!(
                first_free(&runs, "tiny").expect("free"),
                runs.join(format!("tiny-{number}"))
            );
        }
        assert_eq!(first_free(&runs, "other").expect("free"), runs.join("other-1"));
    }

    #[test]
    fn a_run_is_not_written_over() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("a/b");
        let create = || RunFolder::create(Some(&out), "unused", "[train]\n");
        let mut folder = create().expect("new");
        folder.append_metrics("{}").expect("writable");
        let failure = create().expect_err("taken");
        assert_eq!(failure.code, FailureCode::WrongState);
        assert!(failure.to_string().contains("there is config.toml, metrics.jsonl"), "{failure}");
        assert_eq!(fs::read_to_string(out.join(METRICS)).expect("kept"), "{}\n");
    }

    #[test]
    fn metrics_are_bounded_and_the_folder_stays_locked() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("run");
        let mut folder = RunFolder::create(Some(&out), "unused", "[train]\n").expect("new");
        folder.metrics = open_metrics(&out, 20).expect("room");
        for step in 10..90 {
            folder.append_metrics(&format!("{{\"s\":{step}}}")).expect("room");
        }
        let lines = whole_file::last_lines(&out.join(METRICS), u64::MAX);
        let lines: Vec<_> = lines.filter_map(|line| String::from_utf8(line).ok()).collect();
        assert_eq!(lines, ["{\"s\":86}", "{\"s\":87}", "{\"s\":88}", "{\"s\":89}"]);
        let failure = take(&out).expect_err("it is the first one's");
        assert!(failure.to_string().contains("is in use"), "{failure}");
        drop(folder);
        take(&out).expect("free");
    }

    #[test]
    fn a_run_that_did_not_begin_leaves_no_tokenizer() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("run");
        let folder = RunFolder::create(Some(&out), "unused", "[train]\n").expect("new");
        let files = TokenizerFiles { tokenizer_json: b"{}".to_vec(), ..Default::default() };
        files.write(&out.join(MODEL)).expect("writable");
        folder.discard_if_empty();
        assert!(!out.exists(), "its place is free for the next");
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_taken() {
        let parent = tempfile::tempdir().expect("a folder");
        fs::write(parent.path().join("notes.txt"), "mine").expect("writable");
        RunFolder::create(Some(parent.path()), "unused", "").expect("taken");
        assert_eq!(fs::read_to_string(parent.path().join("notes.txt")).expect("kept"), "mine");
    }

    #[test]
    fn a_folder_below_a_file_is_refused() {
        let parent = tempfile::tempdir().expect("a folder");
        let file = parent.path().join("file");
        fs::write(&file, "").expect("writable");
        let failure = RunFolder::create(Some(&file.join("run")), "unused", "").expect_err("a file");
        assert_eq!(failure.code, FailureCode::Usage);
    }

    #[test]
    fn what_is_written_is_whole() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("run");
        let folder = RunFolder::create(Some(&out), "unused", "").expect("new");
        folder.write(SAMPLE, "text").expect("writable");
        let mut names: Vec<_> = fs::read_dir(&out)
            .expect("a folder")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["config.toml", "metrics.jsonl", "sample.txt"]);
    }

    #[test]
    fn only_an_interrupted_run_of_processes_by_the_same_configuration_goes_on() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("run");
        let open = |keys: &str| opened(&out, keys, false);
        let mut first = open("[train]\nseed = 1\n").expect("new");
        first.append_metrics("{}").expect("room");
        drop(first);
        assert_eq!(
            open("[train]\nseed = 1\n").expect_err("of threads").code,
            FailureCode::WrongState
        );
        fs::create_dir(out.join(CLUSTER)).expect("room");
        let mut again = open("[train]\nseed = 1\n").expect("interrupted");
        again.append_metrics("{}").expect("room");
        let refused = open("[train]\nseed = 1\n").expect_err("under way");
        assert!(refused.to_string().contains("is in use"), "{refused}");
        drop(again);
        assert_eq!(fs::read_to_string(out.join(METRICS)).expect("written"), "{}\n{}\n");
        let other = open("[train]\nseed = 2\n").expect_err("another run");
        assert!(other.to_string().contains("another configuration"), "{other}");
        fs::write(out.join(RUN), "{\"interrupted\":true}").expect("room");
        open("[train]\nseed = 1\n").expect("it wrote what it had");
        fs::write(out.join(RUN), "{\"interrupted\":false}").expect("room");
        let done = open("[train]\nseed = 1\n").expect_err("done");
        assert!(done.to_string().contains("holds a run already"), "{done}");
    }

    /// The folder, opened for a run with these keys.
    fn opened(out: &Path, keys: &str, may_branch: bool) -> Result<RunFolder, CommandFailure> {
        let keys = format!("[model]\npreset = \"tiny\"\n{keys}");
        let config = zbelastic_config::load_document("test", &keys).expect("legal").config;
        let text = format!("# zbelastic train config.toml --workers 2\n{keys}");
        let request = RunFolderRequest { config: &config, text: &text, may_branch };
        RunFolder::open(Some(out), "unused", request)
    }

    #[test]
    fn what_makes_other_bits_goes_on_as_a_branch_if_a_person_says_so() {
        let parent = tempfile::tempdir().expect("a folder");
        let out = parent.path().join("run");
        let first = "[train]\nsteps = 10\n";
        let longer = "[train]\nsteps = 20\n";
        let moved = "[train]\nsteps = 10\n[schedule]\nkind = \"1f1b\"\n";
        drop(opened(&out, first, false).expect("new"));
        fs::create_dir_all(out.join(CLUSTER)).expect("room");
        let began = |keys, may_branch| opened(&out, keys, may_branch).map(|run| run.start());
        assert_eq!(began(first, false).expect("goes on"), RunStart::Resumed);
        assert_eq!(began(moved, false).expect("no bit changes"), RunStart::ResumedFromCheckpoint);
        let elsewhere = "[train]\nsteps = 20\n[checkpoint]\ndir = \"/elsewhere\"\n";
        let refused = began(elsewhere, true).expect_err("another store");
        assert!(refused.to_string().contains("checkpoint.dir"), "{refused}");
        let refused = began(longer, false).expect_err("other bits");
        assert!(refused.to_string().contains("--branch"), "{refused}");
        assert_eq!(began(longer, true).expect("said so"), RunStart::Branched);

        fs::write(out.join(RUN), "{\"interrupted\":false,\"steps\":10}").expect("room");
        fs::create_dir(out.join(MODEL)).expect("room");
        for keys in [first, moved, longer] {
            let done = began(keys, false).expect_err("done");
            assert!(done.to_string().contains("holds a run already"), "{done}");
        }
        assert_eq!(began(longer, true).expect("said so"), RunStart::Branched);
        let text = format!("[model]\npreset = \"tiny\"\n{longer}");
        let held = |name: &str| fs::read_to_string(out.join(name)).expect("written");
        let before = held(CONFIG);
        assert_eq!(begin_branch(&out, &text, 10).expect("room"), "config-10.toml");
        assert_eq!((held("config-10.toml"), held(CONFIG)), (before, text.clone()));
        // Another branch that begins there, and an attempt at it that was killed.
        for _ in 0..2 {
            fs::write(out.join(CONFIG), &text).expect("room");
            assert_eq!(begin_branch(&out, &text, 10).expect("room"), "config-10-2.toml");
        }
        assert!(out.join("model-10").is_dir() && !out.join(MODEL).exists());
        assert!(out.join("run-10.json").is_file() && !out.join(RUN).exists());
        assert_eq!(began(longer, false).expect("it is the folder's run now"), RunStart::Resumed);
    }
}
