//! Runs that end before their time.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use crate::common::text;
use crate::folder::{FILES, names};
use crate::place::{Place, Run};

/// A learning rate that does not depend on the number of steps.
const STEADY: &str = "--set optimizer.decay=constant --set optimizer.warmup=0";
/// So many steps that no run comes to its end before it is ended.
const STEPS_MAX: usize = 5000;

fn long(place: &Place, more: &str) -> Command {
    place.small(&format!("--steps {STEPS_MAX} {STEADY} {more}"))
}

/// A run that is under way; it does not outlive its test.
struct Running {
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
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

    /// What was told up to the first line that begins with `start`.
    fn read_to(&mut self, start: &str) -> String {
        let mut told = String::new();
        loop {
            let line = self.next_line();
            told += &format!("{line}\n");
            if line.starts_with(start) {
                return told;
            }
        }
    }

    fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let status = kill.args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("there is a kill").success());
    }

    /// The rest of what is told on standard output and on standard error, and the exit code.
    fn end(&mut self) -> (String, String, Option<i32>) {
        let mut told = String::new();
        for line in self.stdout.iter_mut().flatten() {
            told += &format!("{}\n", line.expect("UTF-8"));
        }
        let said: Vec<String> = self.stderr.by_ref().map(|line| line.expect("UTF-8")).collect();
        let status = self.child.wait().expect("it ends");
        (told, said.join("\n"), status.code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FINISHING: &str = "\nfinishing the step; once more to stop at once";

#[test]
fn ctrl_c_ends_a_run_with_the_step_under_way() {
    let place = Place::new();
    let mut running = Running::start(&mut long(&place, "--json"));
    let told = running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    let (rest, said, code) = running.end();
    assert_eq!((said.as_str(), code), (FINISHING, Some(130)));
    let run = Run::read(&place, told + &rest);
    let steps = run.of("step").len();
    assert!(steps < STEPS_MAX);
    assert_eq!((&run.done()["interrupted"], &run.done()["steps"]), (&true.into(), &steps.into()));
    assert_eq!(names(&run), FILES);
    assert_eq!(run.text("metrics.jsonl"), run.stdout);
    let kept = run.json("run.json");
    assert_eq!((&kept["interrupted"], &kept["steps"]), (&true.into(), &steps.into()));
    // What was done is what a run of so many steps does.
    let planned = place.run(&format!("--steps {steps} {STEADY}"));
    assert_eq!(run.digest(), planned.digest(), "{steps} steps");
}

#[test]
fn a_person_reads_that_a_run_was_interrupted() {
    let place = Place::new();
    let mut running = Running::start(&mut long(&place, "--workers 2 --window 0 --out stopped"));
    running.read_to("step ");
    running.signal("-TERM");
    let (rest, said, code) = running.end();
    assert_eq!((said.as_str(), code), (FINISHING, Some(130)));
    let ending = rest.split_once("\n\n▲ interrupted after ").expect("the ending").1;
    assert!(ending.contains("\nfiles   stopped\n"), "{ending}");
    let metrics = std::fs::read_to_string(place.path("stopped/metrics.jsonl")).expect("kept");
    let run = Run::read(&place, metrics);
    assert!(ending.starts_with(&format!("{} steps in ", run.of("step").len())), "{ending}");
    assert_eq!(names(&run), FILES);
}

#[test]
fn the_second_ctrl_c_ends_a_run_at_once() {
    let place = Place::new();
    // A step of many seconds.
    let long = "--set train.global_batch=16384 --set train.seq_len=256 --workers 1 --out lost";
    let mut running = Running::start(&mut place.small(long));
    running.read_to("model ");
    running.signal("-INT");
    let says = running.stderr.by_ref().nth(1).expect("a line").expect("UTF-8");
    assert_eq!(format!("\n{says}"), FINISHING);
    running.signal("-INT");
    let (rest, said, code) = running.end();
    assert_eq!((said.as_str(), code), ("", Some(130)));
    assert!(!rest.contains("interrupted after"), "{rest}");
    let left = std::fs::read(place.path("lost/metrics.jsonl")).expect("kept");
    assert!(left.is_empty(), "no step was done");
    assert!(!place.path("lost/model").exists());
}

#[test]
fn a_reader_who_leaves_ends_a_run_quietly() {
    let place = Place::new();
    let check = |reader: &str, wanted: &str| {
        let mut running = Running::start(&mut long(&place, reader));
        running.read_to(wanted);
        running.stdout = None;
        let (_, said, code) = running.end();
        assert_eq!((said.as_str(), code), ("", Some(0)), "{reader} {wanted}");
    };
    let metrics = |number: u32| {
        let path = place.path(&format!("runs/tiny-{number}/metrics.jsonl"));
        Run::read(&place, std::fs::read_to_string(path).expect("kept"))
    };
    for (number, reader, wanted) in
        [(1, "--json", "{\"event\":\"step\""), (2, "", "model "), (3, "", "step ")]
    {
        check(reader, wanted);
        let run = metrics(number);
        assert_eq!(names(&run), FILES);
        assert!(run.of("step").len() < STEPS_MAX, "{reader} {wanted}");
        assert_eq!(run.done()["steps"], run.of("step").len());
        assert_eq!(run.json("run.json")["digest"], run.digest());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_is_full_ends_a_run_with_what_it_did() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let mut command = long(&place, "--json --out kept");
    let output = command.stdout(full).output().expect("it runs");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: cannot write standard output: "), "{error}");
    assert_eq!((error.lines().count(), output.status.code()), (1, Some(7)));
    let metrics = std::fs::read_to_string(place.path("kept/metrics.jsonl")).expect("kept");
    let run = Run::read(&place, metrics);
    assert!(run.of("step").len() < STEPS_MAX);
    assert_eq!(names(&run), FILES);
}

#[test]
fn processes_that_were_interrupted_go_on_where_they_are() {
    let place = Place::new();
    let more = format!("--steps 120 {STEADY} --workers 2 --out run");
    let mut running = Running::start(&mut place.small_in_processes(&format!("{more} --json")));
    running.read_to("{\"event\":\"step\"");
    running.signal("-INT");
    let (_, said, code) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("the same command with --out run goes on"), "{said}");
    let other = place.small_in_processes("--steps 121 --out run").output().expect("it runs");
    assert_eq!(other.status.code(), Some(6));
    assert!(text(&other.stderr).contains("another configuration"), "{}", text(&other.stderr));
    let resumed = place.finish(&mut place.small_in_processes(&more));
    let whole = place.run(&format!("--steps 120 {STEADY}"));
    assert_eq!(resumed.digest(), whole.digest());
}

/// The first stage waits for receipts of the last, which hold no floats.
#[test]
fn processes_read_held_out_text_in_the_midst_of_a_run() {
    let place = Place::new();
    let more = "--workers 3 --schedule zb-h1 --set train.eval_every=3 --set data.held_out=0.2";
    let run = place.finish(&mut place.small_in_processes(more));
    let alone = place.run(more);
    assert_eq!(run.digest(), alone.digest());
    let losses = |run: &Run| {
        let of = |read: &serde_json::Value| read["held_out_loss"].as_f64().map(f64::to_bits);
        of(run.done())
    };
    assert!(losses(&alone).is_some());
    assert_eq!(losses(&run), losses(&alone));
}
