//! Events, as a node remembers them.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_timing::StepTimeBreakdown;
use zbelastic_types::{Bytes, NodeId};
use zbelastic_wording::figures::pipelines_text;

use super::hex::HexDigest;
use super::status::{MemberRole, TokenRole};

/// One event of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Grows by one with each, in the log of one node.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Index of the entry in the cluster's log that was applied; none of what only this node saw, and
    /// of programs that did not report it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_index: Option<u64>,
    /// The event, with its details.
    #[serde(flatten)]
    pub kind: EventKind,
    /// The same in words, as the reporting node puts it.
    pub text: String,
}

impl ClusterEvent {
    /// The event, with its words.
    #[must_use]
    pub fn new(sequence: u64, at_ms: u64, kind: EventKind) -> Self {
        let text = kind.to_string();
        Self { sequence, at_ms, log_index: None, kind, text }
    }

    /// The same of an entry in the cluster's log.
    #[must_use]
    pub fn of_entry(self, index: Option<u64>) -> Self {
        Self { log_index: index, ..self }
    }
}

/// Events, by kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The process of a node started.
    Started {
        /// Which node it is.
        node: NodeId,
        /// The version of the program.
        version: String,
    },
    /// Another controller was elected leader.
    Leader {
        /// The leader; none while one is elected.
        node: Option<NodeId>,
        /// The term that the reporting controller is in.
        term: u64,
    },
    /// A node joined the cluster.
    Joined {
        /// The node that joined.
        node: NodeId,
        /// The name of the node.
        name: String,
        /// Its role in the cluster.
        role: MemberRole,
    },
    /// A member started to drain.
    Draining {
        /// The node that drains.
        node: NodeId,
        /// The name of the node.
        name: String,
        /// What it drains for, in words, if the controller that reports it was sent that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A member was lost.
    Lost {
        /// The node that is lost.
        node: NodeId,
        /// The name of the node.
        name: String,
        /// Why it is considered lost, in words.
        reason: String,
        /// From its last sign of life to the decision, in milliseconds.
        detected_ms: Option<f64>,
    },
    /// A run was submitted, and begins or continues.
    RunStarted {
        /// Names the configuration and the text.
        config: HexDigest,
        /// Number of steps sealed already.
        step: u64,
        /// Steps of the run.
        step_count: u64,
    },
    /// A run was paused by a command.
    Paused {
        /// Number of steps sealed so far.
        step: u64,
    },
    /// A run was continued by a command.
    Resumed {
        /// Number of steps sealed so far.
        step: u64,
    },
    /// A run was stopped by a command.
    Stopped {
        /// Number of steps sealed so far.
        step: u64,
    },
    /// A run is held because going on would be wrong.
    Halted {
        /// Number of steps sealed so far.
        step: u64,
        /// Why continuing would be wrong, in words.
        reason: String,
    },
    /// Every step is sealed.
    Done {
        /// Number of steps of the run.
        step: u64,
        /// The digest of the state.
        digest: Option<HexDigest>,
    },
    /// A plan was adopted.
    Plan {
        /// The plan's generation number.
        generation: u64,
        /// The node at each stage, pipeline by pipeline: a node may stand in several.
        stages: Vec<NodeId>,
        /// Pipelines side by side.
        #[serde(default = "crate::status::one")]
        replicas: u32,
        /// Whether nodes take over what others did at the same stage, and no layer moves between
        /// stages.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rerouted: bool,
        /// Name of the schedule.
        schedule: String,
        /// Steps that run ahead of their verdict.
        window: u32,
        /// Why it was made.
        reason: String,
    },
    /// A plan's program runs.
    Running {
        /// The plan's generation number.
        generation: u64,
        /// Layers that moved for it.
        layers_moved: u32,
        /// Bytes that moved for it.
        bytes_moved: Bytes,
        /// The fewest that had to move, with the best assignment of nodes to stages.
        bytes_floor: Bytes,
        /// From the first request for a layer to the last arrival, in milliseconds; none if nothing
        /// moved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moved_ms: Option<f64>,
        /// Without a seal so far, in milliseconds.
        pause_ms: Option<f64>,
    },
    /// A step is sealed.
    Step {
        /// The number of the step, from 1.
        step: u64,
        /// Steps of the run.
        step_count: u64,
        /// In nats a token.
        loss: Option<f64>,
        /// The gradient's norm before clipping.
        gnorm: Option<f64>,
        /// `keep`, `clip` or `skip`.
        verdict: String,
        /// The factor that the gradient was multiplied with.
        clip: Option<f64>,
        /// The learning rate of the step.
        lr: f64,
        /// Since the step before was sealed.
        ms: f64,
        /// Tokens of the step over that time.
        tokens_per_s: f64,
        /// How often it was run.
        #[serde(default = "once")]
        attempts: u32,
        /// The share of a step in which the busiest stage waited lately.
        #[serde(default)]
        bubble: Option<f64>,
        /// The share that the schedule predicts, from the durations of the latest passes.
        #[serde(default)]
        bubble_planned: Option<f64>,
        /// Where the time of the steps under this plan went, in the mean so far.
        #[serde(default)]
        causes: Option<StepTimeBreakdown>,
        /// The generation number of the plan.
        generation: u64,
        /// Number of pipeline stages of the plan.
        stages: u32,
        /// Seconds to the end.
        eta_s: Option<f64>,
    },
    /// Held-out text was read.
    HeldOut {
        /// Steps sealed before it.
        step: u64,
        /// In nats a token.
        loss: Option<f64>,
    },
    /// Work was dropped because its results were not valid.
    Rollback {
        /// The number of the step, from 1.
        step: u64,
        /// The verdict instead of a commit: `skip` or `replay`.
        verdict: String,
        /// Why the work was dropped, in words.
        reason: String,
    },
    /// The run went back to a checkpoint or to its beginning.
    Rewound {
        /// Steps sealed before the one from which it continues.
        to_step: u64,
        /// Why the run went back, in words.
        reason: String,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// Steps sealed before it.
        step: u64,
        /// Bytes of one copy.
        bytes: Bytes,
        /// From its step's seal to the last layer's durability.
        ms: Option<f64>,
    },
    /// Too few voters are there to decide.
    QuorumLost,
    /// Enough are there again.
    QuorumHeld,
    /// All members read a newer format of the log: it is written in it from here on.
    FormatRaised {
        /// Number of the new format.
        format: u8,
    },
    /// A token was made.
    TokenCreated {
        /// The id by which the token is listed and revoked.
        id: String,
        /// The role that it admits.
        role: TokenRole,
    },
    /// A token was revoked.
    TokenRevoked {
        /// The id by which the token is listed and revoked.
        id: String,
    },
    /// A connection was closed because one end broke a rule.
    Violation {
        /// The node at the other end of the connection.
        node: NodeId,
        /// Which rule, in words.
        what: String,
        /// How often that was with this node, since the reporting process started.
        count: u64,
    },
    /// A condition that an operator should look at.
    Warning {
        /// The warning in words.
        what: String,
    },
    /// An event that only a later version knows: its text describes it.
    #[serde(other)]
    Other,
}

impl EventKind {
    /// Whether it reports a step that was sealed, as many events do.
    #[must_use]
    pub const fn is_step(&self) -> bool {
        matches!(self, Self::Step { .. })
    }

    /// The event with the reason why a node drains, if it is about a node that begins to.
    #[must_use]
    pub fn with_drain_reason(mut self, reason_of: impl FnOnce(NodeId) -> Option<String>) -> Self {
        if let Self::Draining { node, reason, .. } = &mut self {
            *reason = reason_of(*node);
        }
        self
    }
}

const fn once() -> u32 {
    1
}

fn milliseconds(time: Option<f64>) -> String {
    time.map_or_else(String::new, |time| format!(", {:.1} s", time / 1e3))
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { node, version } => write!(f, "node {node} started, version {version}"),
            Self::Leader { node: Some(node), term } => write!(f, "node {node} leads term {term}"),
            Self::Leader { node: None, term } => write!(f, "no leader since term {term}"),
            Self::Joined { node, name, role } => write!(f, "{role} {name} ({node}) joined"),
            Self::Draining { node, name, reason } => {
                let reason = reason.iter().map(|reason| format!(": {reason}"));
                write!(f, "node {name} ({node}) is draining{}", reason.collect::<String>())
            }
            Self::Lost { node, name, reason, detected_ms } => {
                write!(f, "node {name} ({node}) lost ({reason}{})", milliseconds(*detected_ms))
            }
            Self::RunStarted { config, step: 0, step_count } => {
                write!(f, "run {} of {step_count} steps begins", config.short())
            }
            Self::RunStarted { config, step, step_count } => {
                write!(f, "run {} continues after step {step} of {step_count}", config.short())
            }
            Self::Paused { step } => write!(f, "paused after step {step}"),
            Self::Resumed { step } => write!(f, "resumed after step {step}"),
            Self::Stopped { step } => write!(f, "stopped after step {step}"),
            Self::Halted { step, reason } => write!(f, "halted after step {step}: {reason}"),
            Self::Done { step, digest: None } => write!(f, "all {step} steps are sealed"),
            Self::Done { step, digest: Some(digest) } => {
                write!(f, "all {step} steps are sealed, digest {digest}")
            }
            Self::Plan { generation, stages, replicas, rerouted, schedule, window, reason } => {
                write!(
                    f,
                    "generation {generation}: {}{}, {schedule}, window {window}: {reason}",
                    pipelines_text(stages.len() as u64 / u64::from((*replicas).max(1)), *replicas),
                    if *rerouted { " rerouted" } else { "" },
                )
            }
            Self::Running { generation, layers_moved, bytes_moved, pause_ms, .. } => write!(
                f,
                "generation {generation} runs: {} moved ({bytes_moved}){}",
                count((*layers_moved).into(), "layer"),
                pause_ms.map_or_else(String::new, |ms| format!(" after {:.1} s", ms / 1e3))
            ),
            Self::Step { step, step_count, loss, .. } => match loss {
                Some(loss) => write!(f, "step {step}/{step_count} loss {loss:.4}"),
                None => write!(f, "step {step}/{step_count} loss not finite"),
            },
            Self::HeldOut { step, loss: Some(loss) } => {
                write!(f, "held-out loss {loss:.4} after step {step}")
            }
            Self::HeldOut { step, loss: None } => {
                write!(f, "held-out loss not finite after step {step}")
            }
            Self::Rollback { step, verdict, reason } => {
                let does = if verdict == "skip" { "skipped" } else { "rolled back" };
                write!(f, "step {step} {does}: {reason}")
            }
            Self::Rewound { to_step, reason } => write!(f, "back to step {to_step}: {reason}"),
            Self::Checkpoint { step, bytes, ms } => {
                write!(f, "checkpoint {step}, {bytes}")?;
                ms.map_or(Ok(()), |ms| write!(f, " in {:.1} s", ms / 1e3))
            }
            Self::QuorumLost => write!(f, "too few controllers are there to decide"),
            Self::QuorumHeld => write!(f, "enough controllers are there to decide"),
            Self::FormatRaised { format } => write!(
                f,
                "the log is written in format {format} from here on: programs that do not read it are \
                 refused"
            ),
            Self::TokenCreated { id, role } => write!(f, "token {id} for the role {role} created"),
            Self::TokenRevoked { id } => write!(f, "token {id} revoked"),
            Self::Violation { node, what, count: 1 } => {
                write!(f, "connection to node {node} closed: {what}")
            }
            Self::Violation { node, what, count } => {
                write!(f, "connection to node {node} closed {count} times, now: {what}")
            }
            Self::Warning { what } => f.write_str(what),
            Self::Other => write!(f, "an event of a later version"),
        }
    }
}

/// As in `1 stage` and `2 stages`.
fn count(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
