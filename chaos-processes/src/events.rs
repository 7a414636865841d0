//! The event files of nodes, read while they grow.
//!
//! A node appends one JSON object a line to `events.jsonl`, until that is renamed to
//! `events.jsonl.1` and a new one begins. The fields that are read here are those
//! that judging a run needs; keys and events that a later version adds are passed over. A line that
//! is no JSON is kept as [`NodeEventKind::Torn`]: a process that dies while it writes may leave
//! one.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zbelastic_whole_file::rotated_path;

/// Bytes that are read of a file at once; the rest is read in the next turn.
const READ_BYTES_MAX: u64 = 4 << 20;
/// No line is longer.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The file below a node's data folder.
pub const EVENTS_FILE: &str = "events.jsonl";

/// Why events could not be read.
#[derive(Debug, thiserror::Error)]
pub enum EventFileError {
    /// The system cannot read the file.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The file has fewer bytes than were read of it.
    #[error("{path} has {found} bytes, and had {expected}: events were taken back")]
    Shrunk {
        /// Path of the file.
        path: String,
        /// Bytes that the file has.
        found: u64,
        /// Bytes that were read of it before.
        expected: u64,
    },
    /// A line does not end.
    #[error("{path} has a line of more than {LINE_BYTES_MAX} bytes")]
    Endless {
        /// Path of the file.
        path: String,
    },
}

impl EventFileError {
    fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.display().to_string(), source }
    }

    fn shrunk(path: &Path, found: u64, expected: u64) -> Self {
        Self::Shrunk { path: path.display().to_string(), found, expected }
    }
}

/// A line of an event file.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeEvent {
    /// When, by the clock on the wall, in microseconds since 1970; 0 if the line has no time.
    pub at_us: u64,
    /// The event that the line reports.
    pub kind: NodeEventKind,
}

/// The kind and content of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEventKind {
    /// The node's process began.
    Started {
        /// Number of the node.
        node: u64,
    },
    /// A leader was elected, or there is none.
    Leader {
        /// Number of the node that leads.
        node: Option<u64>,
        /// The term since which that is so.
        term: u64,
    },
    /// A node was admitted.
    Joined {
        /// Number of the node.
        node: u64,
        /// Name of the node.
        name: String,
    },
    /// A member is gone.
    Lost {
        /// Number of the node.
        node: u64,
        /// Why it is gone, in words.
        reason: String,
    },
    /// A plan was adopted.
    Plan {
        /// Number of the plan, its generation.
        generation: u64,
        /// The node at each stage.
        stages: Vec<u64>,
        /// Name of the schedule.
        schedule: String,
        /// Why the plan was made, in words.
        reason: String,
    },
    /// A plan's program runs.
    Running(PlanTraffic),
    /// A step was sealed.
    Seal(SealEvent),
    /// The run went back.
    Rewound {
        /// Steps that are left.
        to_step: u64,
    },
    /// The run is held.
    Halted {
        /// Why it is held, in words.
        reason: String,
    },
    /// Every step is sealed.
    Done {
        /// Number of sealed steps.
        step: u64,
        /// The digest of the final state.
        digest: Option<String>,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// Steps sealed before it.
        step: u64,
        /// Bytes of one copy.
        bytes: u64,
    },
    /// An event that does not matter here.
    Other,
    /// A line that is no JSON.
    Torn {
        /// The line as it stands in the file.
        line: String,
    },
}

/// The bytes that moved between nodes for a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanTraffic {
    /// Number of the plan, its generation.
    pub generation: u64,
    /// Bytes that moved between nodes.
    pub bytes: u64,
    /// The fewest that had to.
    pub floor: u64,
    /// From the first question to the last arrival, in milliseconds.
    pub ms: f64,
}

/// A step that was sealed.
#[derive(Clone, Debug, PartialEq)]
pub struct SealEvent {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// The plan it was computed under.
    pub generation: u64,
    /// The facts that every node must write alike.
    pub facts: SealFacts,
    /// The digest of the state after it, if it was attested.
    pub digest: Option<String>,
}

/// The facts that were agreed on about a step. Numbers are compared by their bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealFacts {
    /// `keep`, `clip` or `skip`.
    pub verdict: String,
    /// Loss, norm, clip coefficient and learning rate.
    pub bits: [Option<u64>; 4],
}

impl SealFacts {
    /// The loss of the step.
    #[must_use]
    pub fn loss(&self) -> Option<f64> {
        self.bits[0].map(f64::from_bits)
    }
}

/// Every key that some event has.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawNodeEvent {
    event: String,
    at_ms: Option<u64>,
    time_us: Option<u64>,
    node: Option<u64>,
    term: u64,
    name: String,
    reason: Option<String>,
    generation: u64,
    stages: Option<serde_json::Value>,
    schedule: String,
    step: u64,
    to_step: u64,
    verdict: String,
    loss: Option<f64>,
    gnorm: Option<f64>,
    clip: Option<f64>,
    lr: Option<f64>,
    digest: Option<String>,
    bytes_moved: u64,
    bytes_floor: u64,
    bytes: Option<serde_json::Value>,
    moved_ms: Option<f64>,
}

impl RawNodeEvent {
    fn kind(self) -> NodeEventKind {
        let reason = self.reason.unwrap_or_default();
        match (self.event.as_str(), self.node) {
            ("started", Some(node)) => NodeEventKind::Started { node },
            ("leader", node) => NodeEventKind::Leader { node, term: self.term },
            ("joined", Some(node)) => NodeEventKind::Joined { node, name: self.name },
            ("lost", Some(node)) => NodeEventKind::Lost { node, reason },
            ("plan", _) => {
                let stages = self.stages.as_ref().and_then(serde_json::Value::as_array);
                let stages = stages.into_iter().flatten().filter_map(serde_json::Value::as_u64);
                let generation = self.generation;
                let schedule = self.schedule;
                NodeEventKind::Plan { generation, stages: stages.collect(), schedule, reason }
            }
            ("step", _) => {
                let bits = [self.loss, self.gnorm, self.clip, self.lr];
                NodeEventKind::Seal(SealEvent {
                    step: self.step,
                    generation: self.generation,
                    facts: SealFacts {
                        verdict: self.verdict,
                        bits: bits.map(|n| n.map(f64::to_bits)),
                    },
                    digest: self.digest,
                })
            }
            ("running", _) => NodeEventKind::Running(PlanTraffic {
                generation: self.generation,
                bytes: self.bytes_moved,
                floor: self.bytes_floor,
                ms: self.moved_ms.unwrap_or(0.0),
            }),
            ("rewound", _) => NodeEventKind::Rewound { to_step: self.to_step },
            ("halted", _) => NodeEventKind::Halted { reason },
            ("done", _) => NodeEventKind::Done { step: self.step, digest: self.digest },
            ("checkpoint", _) => {
                let bytes = self.bytes.as_ref().and_then(serde_json::Value::as_u64).unwrap_or(0);
                NodeEventKind::Checkpoint { step: self.step, bytes }
            }
            _ => NodeEventKind::Other,
        }
    }
}

/// Whether a line is an event that is not looked at here, with keys of another form.
fn is_of_another_version(line: &str) -> bool {
    const KNOWN: [&str; 11] = [
        "started",
        "leader",
        "joined",
        "lost",
        "plan",
        "running",
        "step",
        "rewound",
        "halted",
        "done",
        "checkpoint",
    ];
    let value = serde_json::from_str::<serde_json::Value>(line);
    value.is_ok_and(|value| value["event"].as_str().is_some_and(|event| !KNOWN.contains(&event)))
}

impl NodeEvent {
    /// The event of a line.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let Ok(raw) = serde_json::from_str::<RawNodeEvent>(line) else {
            let is_later = is_of_another_version(line);
            let torn = || NodeEventKind::Torn { line: line.to_owned() };
            return Self { at_us: 0, kind: if is_later { NodeEventKind::Other } else { torn() } };
        };
        let at_us = raw.time_us.or_else(|| raw.at_ms?.checked_mul(1000)).unwrap_or(0);
        Self { at_us, kind: raw.kind() }
    }
}

/// A file that is read as far as it goes, again and again, and then the one that took its place.
#[derive(Debug)]
pub struct FileTail {
    path: PathBuf,
    /// The file that is read, and the bytes that were read of it.
    opened: Option<(File, u64)>,
    /// A line that has not ended yet.
    rest: Vec<u8>,
}

impl FileTail {
    /// A file, from its beginning. It need not be there yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, opened: None, rest: Vec::new() }
    }

    /// The events of lines that ended since the last time.
    ///
    /// # Errors
    /// If the file cannot be read, or is not the one it was.
    pub fn poll(&mut self) -> Result<Vec<NodeEvent>, EventFileError> {
        let mut bytes = std::mem::take(&mut self.rest);
        self.read_on(&mut bytes)?;
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        self.rest = bytes.split_off(end);
        if self.rest.len() > LINE_BYTES_MAX {
            return Err(EventFileError::Endless { path: self.path.display().to_string() });
        }
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(|line| NodeEvent::parse(&String::from_utf8_lossy(line))).collect())
    }

    fn read_on(&mut self, bytes: &mut Vec<u8>) -> Result<(), EventFileError> {
        if let Some((file, read)) = &mut self.opened {
            let path = &self.path;
            let read_error = |source| EventFileError::read(path, source);
            let found = file.metadata().map_err(read_error)?.len();
            if found < *read {
                return Err(EventFileError::shrunk(path, found, *read));
            }
            let count = file.take(READ_BYTES_MAX).read_to_end(bytes).map_err(read_error)? as u64;
            *read += count;
            if count > 0 || is_same_file(path, file).map_err(read_error)? {
                return Ok(());
            }
            // What took its place is another log, unless this one is kept beside it.
            if !is_same_file(&rotated_path(path), file).map_err(read_error)? {
                return Err(EventFileError::shrunk(path, 0, *read));
            }
        }
        self.opened = match File::open(&self.path) {
            Ok(file) => Some((file, 0)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(EventFileError::read(&self.path, error)),
        };
        self.read_on(bytes)
    }
}

/// Whether the file of this name is the one that is open.
fn is_same_file(path: &Path, file: &File) -> io::Result<bool> {
    let found = match path.metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let own = file.metadata()?;
    Ok((found.dev(), found.ino()) == (own.dev(), own.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, write};
    use std::io::Write;

    use zbelastic_whole_file::RotatedLines;

    use super::{
        EventFileError, FileTail, NodeEvent, NodeEventKind, PlanTraffic, SealEvent, SealFacts,
    };

    #[test]
    fn a_seal_is_read_with_its_bits() {
        let line = "{\"sequence\":9,\"at_ms\":1500,\"event\":\"step\",\"step\":7,\"step_count\":9,\
                    \"loss\":3.25,\"gnorm\":null,\"verdict\":\"keep\",\"clip\":1.0,\"lr\":0.001,\
                    \"ms\":4.5,\"generation\":3,\"stages\":2,\"text\":\"step 7/9\"}";
        let bits = [Some(3.25f64), None, Some(1.0), Some(0.001)].map(|n| n.map(f64::to_bits));
        let facts = SealFacts { verdict: "keep".to_owned(), bits };
        let seal = SealEvent { step: 7, generation: 3, facts, digest: None };
        assert_eq!(
            NodeEvent::parse(line),
            NodeEvent { at_us: 1_500_000, kind: NodeEventKind::Seal(seal) }
        );
    }

    #[test]
    fn each_event_is_read() {
        let check = |line: &str, kind| assert_eq!(NodeEvent::parse(line).kind, kind, "{line}");
        check(r#"{"event":"started","node":4,"version":"1"}"#, NodeEventKind::Started { node: 4 });
        let leader = NodeEventKind::Leader { node: None, term: 3 };
        check(r#"{"event":"leader","node":null,"term":3}"#, leader);
        let lost = NodeEventKind::Lost { node: 5, reason: "silent".to_owned() };
        check(r#"{"event":"lost","node":5,"name":"w1","reason":"silent"}"#, lost);
        let joined = NodeEventKind::Joined { node: 5, name: "w1".to_owned() };
        check(r#"{"event":"joined","node":5,"name":"w1","role":"worker"}"#, joined);
        let plan = NodeEventKind::Plan {
            generation: 2,
            stages: vec![3, 4],
            schedule: "zb-h1".to_owned(),
            reason: "first".to_owned(),
        };
        let line = r#"{"event":"plan","generation":2,"stages":[3,4],"schedule":"zb-h1","window":1,
                       "reason":"first"}"#;
        check(line, plan);
        let traffic = PlanTraffic { generation: 4, bytes: 70, floor: 64, ms: 2.5 };
        let line = "{\"event\":\"running\",\"generation\":4,\"bytes_moved\":70,\
                    \"bytes_floor\":64,\"moved_ms\":2.5,\"pause_ms\":9.5}";
        check(line, NodeEventKind::Running(traffic));
        check(r#"{"event":"rewound","to_step":4}"#, NodeEventKind::Rewound { to_step: 4 });
        let halted = NodeEventKind::Halted { reason: "no".to_owned() };
        check(r#"{"event":"halted","step":1,"reason":"no"}"#, halted);
        let done = NodeEventKind::Done { step: 9, digest: Some("ab".to_owned()) };
        check(r#"{"event":"done","step":9,"digest":"ab"}"#, done);
        check(r#"{"event":"new in a later version","node":"x7"}"#, NodeEventKind::Other);
        check(r#"{"event":"later"}"#, NodeEventKind::Other);
        let line = r#"{"event":"step","step":"seven"}"#;
        check(line, NodeEventKind::Torn { line: line.to_owned() });
        check("{\"event\":\"st", NodeEventKind::Torn { line: "{\"event\":\"st".to_owned() });
        assert_eq!(NodeEvent::parse(r#"{"event":"x","time_us":12,"at_ms":9}"#).at_us, 12);
    }

    #[test]
    fn lines_come_when_they_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let mut tail = FileTail::new(path.clone());
        assert!(tail.poll().expect("not there yet").is_empty());
        let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        let mut check = |text: &str, count: usize| {
            file.write_all(text.as_bytes()).expect("written");
            assert_eq!(tail.poll().expect("readable").len(), count, "{text}");
        };
        check("{\"event\":\"a\"}\n{\"event\"", 1);
        check(":\"b\"}", 0);
        check("\n\n", 1);
        check("", 0);
    }

    #[test]
    fn a_file_is_read_to_its_end_before_the_one_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let mut lines = RotatedLines::open(&path, 30).expect("a file");
        let mut tail = FileTail::new(path.clone());
        let read = |tail: &mut FileTail| -> Vec<NodeEventKind> {
            let polled = (0..3).flat_map(|_| tail.poll().expect("readable"));
            polled.map(|event| event.kind).collect()
        };
        let mut write = |step: u64| {
            lines.write(&format!(r#"{{"event":"rewound","to_step":{step}}}"#)).expect("room");
            NodeEventKind::Rewound { to_step: step }
        };
        let first = write(1);
        assert_eq!(read(&mut tail), [first]);
        let next = [write(2), write(3)];
        // Two turns of the file were too fast: the line of the first is not there any more.
        assert!(matches!(tail.poll(), Err(EventFileError::Shrunk { .. })), "{next:?}");
        let mut tail = FileTail::new(path.clone());
        assert_eq!(read(&mut tail), next[1..]);
        let last = write(4);
        assert_eq!(read(&mut tail), [last]);
    }

    #[test]
    fn a_file_that_loses_lines_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        write(&path, "{}\n{}\n").expect("written");
        let mut tail = FileTail::new(path.clone());
        assert_eq!(tail.poll().expect("readable").len(), 2);
        write(&path, "{}\n").expect("written");
        let error = tail.poll().expect_err("it is shorter");
        assert!(matches!(error, EventFileError::Shrunk { found: 3, expected: 6, .. }), "{error}");
    }
}
