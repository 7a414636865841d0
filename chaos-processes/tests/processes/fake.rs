//! Processes that pretend to be a cluster. Which process leads and computes, and what is sealed,
//! goes through files in the folder above their data folders; locks, which the system takes from a
//! process that dies, show which processes live.

use std::fs::{self, File};
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that names what is wrong with a process.
pub const BUG: &str = "FAKE_BUG";
/// Time between two seals.
const STEP: Duration = Duration::from_millis(10);
/// Between two looks of those that do not lead.
const LOOK: Duration = Duration::from_millis(2);
const DRAINED: i32 = 75;
/// The step at which a process with the bug `exit` ends.
const EXIT_STEP: usize = 8;
/// Workers' ids are their numbers after this one.
const FIRST_WORKER: u64 = 100;

pub fn is_subcommand(word: Option<&String>) -> bool {
    let subcommands = ["init", "join", "token", "run", "status", "ckpt", "train"];
    word.is_some_and(|word| subcommands.contains(&word.as_str()))
}

/// The words of a command line.
struct TypedWords<'a>(&'a [String]);

impl<'a> TypedWords<'a> {
    fn value(&self, flag: &str) -> &'a str {
        let place = self.0.iter().position(|word| word == flag);
        &self.0[place.unwrap_or_else(|| panic!("no {flag} in {:?}", self.0)) + 1]
    }

    fn steps(&self) -> usize {
        let mut steps = self.0.iter().filter_map(|word| word.strip_prefix("train.steps="));
        steps.next_back().expect("the steps").parse().expect("a number")
    }
}

pub fn run(words: &[String]) {
    let typed = TypedWords(words);
    if words[0] == "train" {
        return train(typed.steps());
    }
    let data_dir = PathBuf::from(typed.value("--data-dir"));
    let world = FakeWorld(data_dir.parent().expect("in the folder of the group").to_owned());
    match words[0].as_str() {
        "token" => println!("{{\"token\":\"T\",\"addresses\":[\"a:1\"]}}"),
        "run" => {
            fs::write(world.path("steps.part"), typed.steps().to_string()).expect("written");
            fs::rename(world.path("steps.part"), world.path("steps")).expect("renamed");
        }
        "status" => println!("{{\"leader\":1,\"members\":[]}}"),
        "ckpt" => {}
        _ => FakeNode::new(&typed, world, data_dir).live(),
    }
}

/// A training without a cluster: what it printed is what everybody else is compared with.
fn train(steps: usize) {
    for step in 1..=steps {
        let loss = loss(step);
        println!(
            "{{\"event\":\"step\",\"step\":{step},\"loss\":{loss},\"verdict\":\"keep\",\"ms\":9}}"
        );
    }
    println!("{{\"event\":\"done\",\"steps\":{steps},\"digest\":\"ab\"}}");
}

fn loss(step: usize) -> f64 {
    5.0 - step as f64 / 64.0
}

/// What all processes share.
struct FakeWorld(PathBuf);

impl FakeWorld {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Lines that were agreed on.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn agree(&self, line: &str) {
        append(&self.path("log"), line);
    }

    fn steps(&self) -> Option<usize> {
        fs::read_to_string(self.path("steps")).ok()?.parse().ok()
    }

    /// Workers whose processes live.
    fn workers(&self) -> Vec<u64> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let ids = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let id = name.strip_prefix("alive-")?.parse().ok()?;
            File::open(file.path()).ok()?.try_lock().is_err().then_some(id)
        });
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids
    }
}

/// In one write, so that a line is there or not.
fn append(path: &Path, line: &str) {
    let mut file = File::options().create(true).append(true).open(path).expect("opened");
    // A full disk takes nothing, and that is no reason to end.
    let _ = file.write_all(format!("{line}\n").as_bytes());
}

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

fn steps_of(log: &[String]) -> usize {
    log.iter().filter(|line| line.contains("\"step\"") && !line.contains("done")).count()
}

struct FakeNode {
    id: u64,
    world: FakeWorld,
    events: PathBuf,
    is_worker: bool,
    bug: String,
    /// It has its port as long as it lives.
    socket: UdpSocket,
}

impl FakeNode {
    fn new(typed: &TypedWords<'_>, world: FakeWorld, data_dir: PathBuf) -> Self {
        let name = typed.value("--name");
        let number: u64 = name[1..].parse().expect("a number");
        let is_worker = name.starts_with('w');
        let socket = UdpSocket::bind(typed.value("--bind")).expect("its port is free");
        fs::create_dir_all(&data_dir).expect("made");
        fs::write(world.path(&format!("at-{}", typed.value("--advertise"))), "").expect("written");
        Self {
            id: if is_worker { FIRST_WORKER + number } else { number },
            world,
            events: data_dir.join("events.jsonl"),
            is_worker,
            bug: std::env::var(BUG).unwrap_or_default(),
            socket,
        }
    }

    /// Sends something to every node, at the address that it advertises.
    fn send(&self) {
        let files = fs::read_dir(&self.world.0).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        for address in names.filter_map(|name| name.strip_prefix("at-").map(str::to_owned)) {
            // A node that is not there does not get it.
            let _ = self.socket.send_to(b"news", address);
        }
    }

    fn write_event(&self, event: &str) {
        append(&self.events, &format!("{{\"time_us\":{},{event}}}", now_us()));
    }

    fn live(&self) {
        extern "C" fn leave(_: libc::c_int) {
            // SAFETY: it may be called in a handler, and does not return.
            unsafe { libc::_exit(DRAINED) }
        }
        // SAFETY: the handler calls nothing but what handlers may call.
        unsafe { libc::signal(libc::SIGTERM, leave as *const () as libc::sighandler_t) };
        if self.is_worker {
            let path = self.world.path(&format!("alive-{}", self.id));
            let alive = File::options().create(true).append(true).open(path).expect("opened");
            alive.lock().expect("it is its own");
            self.write_event(&format!("\"event\":\"started\",\"node\":{}", self.id));
            loop {
                sleep(LOOK);
                if self.bug == "exit" && steps_of(&self.world.log()) >= EXIT_STEP {
                    eprintln!("I leave");
                    std::process::exit(3);
                }
            }
        }
        self.write_event(&format!("\"event\":\"started\",\"node\":{}", self.id));
        self.control()
    }

    /// A controller writes what is agreed on, and leads if no other does.
    fn control(&self) {
        let own = fs::read_to_string(&self.events).unwrap_or_default();
        let own_kinds = ["\"started\"", "\"leader\""];
        let is_copied = |line: &&str| !own_kinds.iter().any(|kind| line.contains(kind));
        let mut output = own.lines().filter(is_copied).count();
        let path = self.world.path("leader");
        let lead = File::options().create(true).append(true).open(path).expect("opened");
        let mut is_leader = false;
        loop {
            let log = self.world.log();
            for line in &log[output..] {
                append(&self.events, line);
            }
            output = log.len();
            if !is_leader && lead.try_lock().is_ok() {
                is_leader = true;
                self.begin_to_lead();
                continue;
            }
            if is_leader {
                self.lead(&log);
            }
            sleep(if is_leader { STEP } else { LOOK });
        }
    }

    fn begin_to_lead(&self) {
        append(&self.world.path("terms"), "one more");
        let terms = fs::read_to_string(self.world.path("terms")).expect("readable");
        let id = self.id;
        let term = terms.lines().count();
        self.write_event(&format!("\"event\":\"leader\",\"node\":{id},\"term\":{term}"));
        let log = self.world.log();
        let steps = steps_of(&log);
        if steps > 0 && self.bug == "lost" {
            self.world.agree(&self.seal(steps, 1000 + term));
        }
        if steps > 0 && self.bug == "gap" {
            self.world.agree(&self.seal(steps + 2, 1));
        }
    }

    fn lead(&self, log: &[String]) {
        self.admit(log);
        let plans: Vec<&String> = log.iter().filter(|line| line.contains("\"plan\"")).collect();
        let workers = self.world.workers();
        let stages = format!("\"stages\":{workers:?}");
        let is_planned = plans.last().is_some_and(|plan| plan.contains(&stages));
        let is_stuck = self.bug == "stuck" && plans.len() > 3;
        let (Some(steps), false) = (self.world.steps(), workers.is_empty() || is_stuck) else {
            return;
        };
        let sealed = steps_of(log);
        if !is_planned {
            let generation = plans.len() + 1;
            let time = now_us();
            self.world.agree(&format!(
                "{{\"time_us\":{time},\"event\":\"plan\",\"generation\":{generation},{stages}}}"
            ));
        } else if sealed < steps {
            self.world.agree(&self.seal(sealed + 1, plans.len()));
            if self.bug != "bypass" {
                self.send();
            }
        } else if !log.iter().any(|line| line.contains("\"done\"")) {
            let is_wrong = self.bug == "digest" && plans.len() > 1;
            let digest = if is_wrong { "cd" } else { "ab" };
            let time = now_us();
            self.world.agree(&format!(
                "{{\"time_us\":{time},\"event\":\"done\",\"step\":{steps},\"digest\":\"{digest}\"}}"
            ));
        }
    }

    /// Workers that are new are members from now on.
    fn admit(&self, log: &[String]) {
        for worker in self.world.workers() {
            let joined = format!("\"event\":\"joined\",\"node\":{worker},");
            if !log.iter().any(|line| line.contains(&joined)) {
                let time = now_us();
                let number = worker - FIRST_WORKER;
                self.world.agree(&format!(
                    "{{\"time_us\":{time},{joined}\"name\":\"w{number}\",\"role\":\"worker\"}}"
                ));
            }
        }
    }

    fn seal(&self, step: usize, generation: usize) -> String {
        let is_wrong = self.bug == "loss" && generation > 2;
        let loss = loss(step) + if is_wrong { f64::EPSILON * 4.0 } else { 0.0 };
        let time = now_us();
        format!(
            "{{\"time_us\":{time},\"event\":\"step\",\"step\":{step},\"loss\":{loss},\
             \"verdict\":\"keep\",\"generation\":{generation}}}"
        )
    }
}
