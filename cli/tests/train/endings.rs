//! Runs that end before their time.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use crate::common::text;
use crate::folder::{FILES, names};
use crate::text_folder::{TextFolder, TrainingOutput};

/// A learning rate that does not depend on the number of steps.
pub const STEADY: &str = "--set optimizer.decay=constant --set optimizer.warmup=0";
/// So many steps that no run comes to its end before it is ended.
const STEPS_MAX: usize = 5000;

fn long(folder: &TextFolder, more: &str) -> Command {
    folder.small(&format!("--steps {STEPS_MAX} {STEADY} {more}"))
}

fn long_in_processes(folder: &TextFolder, more: &str) -> Command {
    folder.small_in_processes(&format!("--steps {STEPS_MAX} {STEADY} {more}"))
}

/// The files of a run in processes, in the order of names.
fn files_of_processes() -> Vec<&'static str> {
    let mut files = FILES.to_vec();
    files.push("cluster");
    files.sort_unstable();
    files
}

/// Processes that work in this place; none can be listed without Linux's `/proc`.
fn processes_in(folder: &TextFolder) -> usize {
    let folder = folder.path("");
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let lives_here = |entry: &std::fs::DirEntry| {
        let works_in = std::fs::read_link(entry.path().join("cwd"));
        works_in.is_ok_and(|works_in| works_in.starts_with(&folder))
    };
    processes.flatten().filter(lives_here).count()
}

/// A run that is under way; it does not outlive its test.
pub struct RunningTraining {
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl RunningTraining {
    pub fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let stdout = child.stdout.take().map(|pipe| BufReader::new(pipe).lines());
        let stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        Self { child, stdout, stderr }
    }

    fn next_line(&mut self) -> String {
        let stdout = self.stdout.as_mut().expect("still open");
        stdout.next().expect("a line").expect("UTF-8")
    }

    /// Standard output up to the first line that begins with `start`.
    pub fn read_to(&mut self, start: &str) -> String {
        let mut stdout = String::new();
        loop {
            let line = self.next_line();
            stdout += &format!("{line}\n");
            if line.starts_with(start) {
                return stdout;
            }
        }
    }

    /// The next line of standard error.
    pub fn next_note(&mut self) -> String {
        self.stderr.next().expect("a line").expect("UTF-8")
    }

    pub fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let status = kill.args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("there is a kill").success());
    }

    /// The rest of standard output and standard error, and the exit code.
    pub fn end(&mut self) -> (String, String, Option<i32>) {
        let mut stdout = String::new();
        for line in self.stdout.iter_mut().flatten() {
            stdout += &format!("{}\n", line.expect("UTF-8"));
        }
        let stderr: Vec<String> = self.stderr.by_ref().map(|line| line.expect("UTF-8")).collect();
        let status = self.child.wait().expect("it ends");
        (stdout, stderr.join("\n"), status.code())
    }
}

impl Drop for RunningTraining {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FINISHING: &str = "\nfinishing the step; press Ctrl-C again to stop immediately";

#[test]
fn ctrl_c_ends_a_run_with_the_step_under_way() {
    let folder = TextFolder::new();
    check_ctrl_c(&folder, &mut long(&folder, "--json"), FINISHING, &FILES);
}

/// Whoever manages the machine starts the same command again, as for `join`.
#[test]
fn sigterm_ends_processes_with_the_step_under_way_and_code_75() {
    let folder = TextFolder::new();
    let more = format!("--steps 120 {STEADY} --workers 2 --out run");
    let mut running =
        RunningTraining::start(&mut folder.small_in_processes(&format!("{more} --json")));
    running.read_to("{\"event\":\"step\"");
    running.signal("-TERM");
    let (_, stderr, code) = running.end();
    assert_eq!(code, Some(75), "{stderr}");
    assert!(stderr.contains("SIGTERM: finishing the step"), "{stderr}");
    assert!(stderr.contains("the same command with --out run goes on"), "{stderr}");
    let resumed = folder.finish(&mut folder.small_in_processes(&more));
    let whole = folder.run(&format!("--steps 120 {STEADY}"));
    assert_eq!(resumed.digest(), whole.digest());
}

#[test]
fn ctrl_c_ends_processes_with_the_step_under_way() {
    let folder = TextFolder::new();
    let expected = format!("{FINISHING}\nnote: the same command with --out runs/tiny-1 goes on");
    let mut command = long_in_processes(&folder, "--json --workers 2");
    check_ctrl_c(&folder, &mut command, &expected, &files_of_processes());
    assert_eq!(processes_in(&folder), 0);
}

/// Everything that a run to its end leaves behind is there, of the steps that were done.
fn check_ctrl_c(folder: &TextFolder, command: &mut Command, expected: &str, files: &[&str]) {
    let mut running = RunningTraining::start(command);
    let stdout = running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    let (rest, stderr, code) = running.end();
    assert_eq!((stderr.as_str(), code), (expected, Some(130)));
    let run = TrainingOutput::read(folder, stdout + &rest);
    let steps = run.of("step").len();
    assert!(steps < STEPS_MAX);
    assert_eq!((&run.done()["interrupted"], &run.done()["steps"]), (&true.into(), &steps.into()));
    assert_eq!(names(&run), files);
    assert_eq!(run.text("metrics.jsonl"), run.stdout);
    let kept = run.json("run.json");
    assert_eq!((&kept["interrupted"], &kept["steps"]), (&true.into(), &steps.into()));
    // What was done is what a run of so many steps does.
    let planned = folder.run(&format!("--steps {steps} {STEADY}"));
    assert_eq!(run.digest(), planned.digest(), "{steps} steps");
}

#[test]
fn a_person_reads_that_a_run_was_interrupted() {
    let folder = TextFolder::new();
    let mut running =
        RunningTraining::start(&mut long(&folder, "--workers 2 --window 0 --out stopped"));
    running.read_to("step ");
    running.signal("-INT");
    let (rest, stderr, code) = running.end();
    assert_eq!((stderr.as_str(), code), (FINISHING, Some(130)));
    let ending = rest.split_once("\n\n▲ interrupted after ").expect("the ending").1;
    assert!(ending.contains("\nfiles   stopped\n"), "{ending}");
    let metrics = std::fs::read_to_string(folder.path("stopped/metrics.jsonl")).expect("kept");
    let run = TrainingOutput::read(&folder, metrics);
    assert!(ending.starts_with(&format!("{} steps in ", run.of("step").len())), "{ending}");
    assert_eq!(names(&run), FILES);
}

#[test]
fn the_second_ctrl_c_ends_a_run_at_once() {
    let folder = TextFolder::new();
    // A step of many seconds.
    let long = "--set train.global_batch=16384 --set train.seq_len=256 --workers 1 --out lost";
    let mut running = RunningTraining::start(&mut folder.small(long));
    running.read_to("model ");
    running.signal("-INT");
    let finishing = running.stderr.by_ref().nth(1).expect("a line").expect("UTF-8");
    assert_eq!(format!("\n{finishing}"), FINISHING);
    running.signal("-INT");
    let (rest, stderr, code) = running.end();
    assert_eq!((stderr.as_str(), code), ("", Some(130)));
    assert!(!rest.contains("interrupted after"), "{rest}");
    let left = std::fs::read(folder.path("lost/metrics.jsonl")).expect("kept");
    assert!(left.is_empty(), "no step was done");
    assert!(!folder.path("lost/model").exists());
}

#[test]
fn a_reader_who_leaves_ends_a_run_quietly() {
    check_reader_who_leaves(long, &FILES);
}

#[test]
fn a_reader_who_leaves_ends_processes_quietly() {
    check_reader_who_leaves(long_in_processes, &files_of_processes());
}

fn check_reader_who_leaves(command: fn(&TextFolder, &str) -> Command, files: &[&str]) {
    let folder = TextFolder::new();
    let check = |reader: &str, wanted: &str| {
        let mut running = RunningTraining::start(&mut command(&folder, reader));
        running.read_to(wanted);
        running.stdout = None;
        let (_, stderr, code) = running.end();
        assert_eq!((stderr.as_str(), code), ("", Some(0)), "{reader} {wanted}");
    };
    let metrics = |number: u32| {
        let path = folder.path(&format!("runs/tiny-{number}/metrics.jsonl"));
        TrainingOutput::read(&folder, std::fs::read_to_string(path).expect("kept"))
    };
    for (number, reader, wanted) in
        [(1, "--json", "{\"event\":\"step\""), (2, "", "model "), (3, "", "step ")]
    {
        check(reader, wanted);
        assert_eq!(processes_in(&folder), 0);
        let run = metrics(number);
        let steps = run.of("step").len();
        // One who leaves before the first step leaves no scalars.
        let expected = files.iter().filter(|name| steps > 0 || **name != "tensorboard");
        assert_eq!(names(&run), expected.copied().collect::<Vec<_>>());
        assert!(steps < STEPS_MAX, "{reader} {wanted}");
        assert_eq!(run.done()["steps"], steps);
        assert_eq!(run.json("run.json")["digest"], run.digest());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_is_full_ends_a_run_with_what_it_did() {
    let folder = TextFolder::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let mut command = long(&folder, "--json --out kept");
    let output = command.stdout(full).output().expect("it runs");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: cannot write standard output: "), "{error}");
    assert_eq!((error.lines().count(), output.status.code()), (1, Some(7)));
    let metrics = std::fs::read_to_string(folder.path("kept/metrics.jsonl")).expect("kept");
    let run = TrainingOutput::read(&folder, metrics);
    assert!(run.of("step").len() < STEPS_MAX);
    assert_eq!(names(&run), FILES);
}

#[test]
fn processes_that_were_interrupted_go_on_where_they_are() {
    let folder = TextFolder::new();
    let more = format!("--steps 120 {STEADY} --workers 2 --out run");
    let mut running =
        RunningTraining::start(&mut folder.small_in_processes(&format!("{more} --json")));
    running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    let (_, stderr, code) = running.end();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("the same command with --out run goes on"), "{stderr}");
    let kept = TrainingOutput::read(
        &folder,
        std::fs::read_to_string(folder.path("run/metrics.jsonl")).expect("kept"),
    );
    let until = kept.done()["steps"].as_u64().expect("a count");
    let same = folder.run(&format!("--steps {until} {STEADY}"));
    assert_eq!(kept.digest(), same.digest(), "it was ended behind a whole step");
    let other = folder.small_in_processes("--steps 121 --out run").output().expect("it runs");
    assert_eq!(other.status.code(), Some(6));
    assert!(text(&other.stderr).contains("another configuration"), "{}", text(&other.stderr));
    let resumed = folder.finish(&mut folder.small_in_processes(&more));
    let whole = folder.run(&format!("--steps 120 {STEADY}"));
    assert_eq!(resumed.digest(), whole.digest());
    assert_eq!(resumed.step(1)["step"], until + 1, "no step is taken twice");
    assert_eq!(resumed.json("run.json")["interrupted"], false);
}

/// Workers, schedule and window are no arithmetic: the run goes on with others, and has the same
/// bits.
#[test]
fn a_run_that_was_interrupted_goes_on_with_other_workers_and_another_schedule() {
    let folder = TextFolder::new();
    let more = format!("--steps 120 {STEADY} --out run");
    let first = format!("{more} --workers 2 --schedule zb-h1 --json");
    let mut running = RunningTraining::start(&mut folder.small_in_processes(&first));
    running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    assert_eq!(running.end().2, Some(130));
    let metrics = std::fs::read_to_string(folder.path("run/metrics.jsonl")).expect("kept");
    let until = TrainingOutput::read(&folder, metrics).done()["steps"].as_u64().expect("a count");
    let other = format!("{more} --workers 3 --schedule 1f1b --window 0");
    let resumed = folder.finish(&mut folder.small_in_processes(&other));
    assert_eq!(resumed.digest(), folder.run(&format!("--steps 120 {STEADY}")).digest());
    assert_eq!(resumed.step(1)["step"], until + 1, "no step is taken twice");
    let kept = std::fs::read_to_string(folder.path("run/config.toml")).expect("kept");
    assert!(kept.contains("--workers 3") && kept.contains("kind = \"1f1b\""), "{kept}");
}

#[test]
fn a_run_that_is_done_goes_on_as_a_branch_with_more_steps() {
    let folder = TextFolder::new();
    let steps = |steps| format!("--steps {steps} {STEADY} --workers 2 --out run");
    let short = folder.finish(&mut folder.small_in_processes(&steps(10)));
    let model = std::fs::read(folder.path("run/model/model.safetensors")).expect("written");
    let refused = folder.small_in_processes(&steps(20)).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(6));
    let stderr = text(&refused.stderr);
    assert!(stderr.contains("holds a run already") && stderr.contains("--branch"), "{stderr}");
    let longer = format!("{} --branch", steps(20));
    let branch = folder.finish(&mut folder.small_in_processes(&longer));
    assert_eq!(branch.digest(), folder.run(&format!("--steps 20 {STEADY}")).digest());
    assert_eq!(branch.step(1)["step"], 11);
    let aside = std::fs::read(folder.path("run/model-10/model.safetensors")).expect("put aside");
    assert!(aside == model, "the first model is still there");
    assert_ne!(std::fs::read(folder.path("run/model/model.safetensors")).expect("written"), model);
    let kept = std::fs::read_to_string(folder.path("run/run-10.json")).expect("put aside");
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["digest"], short.digest());
    assert_eq!(kept["from"], serde_json::Value::Null);
    let config = std::fs::read_to_string(folder.path("run/config-10.toml")).expect("put aside");
    assert!(config.contains("steps = 10"), "{config}");
    let run = std::fs::read_to_string(folder.path("run/run.json")).expect("written");
    let run: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    assert_eq!(run["from"], serde_json::json!({ "step": 10, "digest": short.digest() }));
    let metrics = std::fs::read_to_string(folder.path("run/metrics.jsonl")).expect("written");
    let mark = metrics.lines().find(|line| line.contains("\"event\":\"branch\"")).expect("a mark");
    assert!(mark.contains("\"step\":10,") && mark.contains("config-10.toml"), "{mark}");
    let shorter = folder.small_in_processes(&format!("{} --branch", steps(15))).output();
    let shorter = shorter.expect("it runs");
    assert_eq!(shorter.status.code(), Some(6));
    let stderr = text(&shorter.stderr);
    assert!(stderr.contains("15 steps, and the run begins behind step 20"), "{stderr}");
}

/// The controller reads its log again, and reports all of it as if it happened now.
#[test]
#[cfg(target_os = "linux")]
fn a_controller_that_is_killed_has_no_step_reported_twice() {
    let folder = TextFolder::new();
    let more = format!("--steps 150 {STEADY} --workers 2");
    let mut running =
        RunningTraining::start(&mut folder.small_in_processes(&format!("{more} --json")));
    let stdout = running.read_to("{\"event\":\"step\",\"step\":20,");
    kill_controller(&folder);
    let (rest, stderr, code) = running.end();
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let run = TrainingOutput::read(&folder, stdout + &rest);
    assert_eq!(run.each("step"), (1..=150).map(serde_json::Value::from).collect::<Vec<_>>());
    assert_eq!(run.digest(), folder.run(&format!("--steps 150 {STEADY}")).digest());
}

/// Kills the process whose folder is the controller's.
#[cfg(target_os = "linux")]
fn kill_controller(folder: &TextFolder) {
    let lock = folder.path("runs/tiny-1/cluster/controller/LOCK");
    let process = std::fs::read_to_string(&lock).expect("its number");
    let status = Command::new("kill").args(["-9", process.trim()]).status();
    assert!(status.expect("there is a kill").success());
}

/// Its processes know each other by that address, so another process that holds it is reported.
#[test]
fn processes_whose_port_is_taken_report_it() {
    let folder = TextFolder::new();
    let more = format!("--steps 5000 {STEADY} --workers 1 --out run");
    let mut running =
        RunningTraining::start(&mut folder.small_in_processes(&format!("{more} --json")));
    running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    assert_eq!(running.end().2, Some(130));
    let known = folder.path("run/cluster/controller/identity/node.json");
    let known =
        std::fs::read(&known).unwrap_or_else(|error| panic!("{}: {error}", known.display()));
    let known: serde_json::Value = serde_json::from_slice(&known).expect("JSON");
    let address = known["bind"].as_str().expect("an address").to_owned();
    let _taken = std::net::UdpSocket::bind(&address).expect("it is free");
    let output = folder.small_in_processes(&more).output().expect("it runs");
    let error = text(&output.stderr);
    assert!(error.contains(&format!("the run cannot go on at {address}")), "{error}");
    assert_eq!(output.status.code(), Some(6));
}

#[test]
fn a_folder_where_a_run_is_under_way_is_left_alone() {
    let folder = TextFolder::new();
    let more = format!("--steps 5000 {STEADY} --workers 1 --out run");
    let mut running =
        RunningTraining::start(&mut folder.small_in_processes(&format!("{more} --json")));
    running.read_to("{\"event\":\"step\"");
    let output = folder.small_in_processes(&more).output().expect("it runs");
    let error = text(&output.stderr);
    assert!(error.contains("run is in use"), "{error}");
    assert_eq!(output.status.code(), Some(6));
    running.signal("-INT");
    assert_eq!(running.end().2, Some(130), "the other one goes on");
}

/// The first stage waits for receipts of the last, which hold no floats.
#[test]
fn processes_read_held_out_text_in_the_midst_of_a_run() {
    let folder = TextFolder::new();
    let more = "--workers 3 --schedule zb-h1 --set train.eval_every=3 --set data.held_out=0.2";
    let run = folder.finish(&mut folder.small_in_processes(more));
    let alone = folder.run(more);
    assert_eq!(run.digest(), alone.digest());
    let losses = |run: &TrainingOutput| {
        let of = |read: &serde_json::Value| read["held_out_loss"].as_f64().map(f64::to_bits);
        of(run.done())
    };
    assert!(losses(&alone).is_some());
    assert_eq!(losses(&run), losses(&alone));
}
