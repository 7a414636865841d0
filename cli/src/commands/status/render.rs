//! A status as text: a pure function of the cluster's answer and of the width.

use std::fmt::Write;
use std::time::Duration;

use zbelastic_api::{
    CheckpointStatus, CommitLatencyStatus, FailureStatus, JobPhaseStatus, JobStatus, LayerPace,
    LinkPace, PaceStatus, PlanStatus, PromiseStatus, QuorumStatus, ScrubStatus, StatusReport,
    VerdictWait, escape,
};
use zbelastic_types::NodeId;
use zbelastic_wording::figures::{
    duration_text, pipelines_text, scientific, short_count, short_time, three_digits,
};

use crate::commands::node::render_members;
use crate::commands::table::fit;

/// Checkpoints that are shown; `ckpt list` shows all.
const CHECKPOINTS_SHOWN: usize = 3;

/// The status as text, no line longer than `width`.
#[must_use]
pub fn render_status(status: &StatusReport, width: usize) -> String {
    let mut lines = vec![cluster_line(status)];
    lines.extend(job_lines(status.job.as_ref()));
    lines.extend(status.plan.as_ref().map(|plan| plan_line(plan, status)));
    lines.extend(status.promise.as_ref().map(promise_line));
    lines.extend(status.commit_latency.as_ref().map(commit_line));
    lines.extend(status.verdict_wait.as_ref().map(wait_line));
    lines.extend(status.pace.as_ref().map(pace_line));
    lines.extend(scrub_line(status));
    lines.push(String::new());
    let table = render_members(status).render(usize::MAX);
    lines.extend(table.lines().map(str::to_owned));
    lines.extend(section("activities", activity_lines(status)));
    lines
        .extend(section("failures", status.failures.iter().rev().map(|f| failure_line(f, status))));
    let newest = status.checkpoints.iter().rev().take(CHECKPOINTS_SHOWN);
    lines.extend(section("checkpoints", newest.map(|c| checkpoint_line(c, status))));
    lines.iter().map(|line| fit(line, width) + "\n").collect()
}

/// A title beside the first of the lines, if there are any.
fn section(title: &str, lines: impl Iterator<Item = String>) -> Vec<String> {
    let titled = lines.enumerate().map(|(index, line)| {
        let title = if index == 0 { title } else { "" };
        format!("{title:<11} {line}")
    });
    let titled: Vec<String> = titled.collect();
    if titled.is_empty() { titled } else { std::iter::once(String::new()).chain(titled).collect() }
}

/// Long activities of members, a line each: the reason why a run waits may be longer than a line.
fn activity_lines(status: &StatusReport) -> impl Iterator<Item = String> {
    status.members.iter().filter_map(|member| {
        let activity = member.work?.activity?;
        Some(format!("{} {activity}", node_text(member.id, status)))
    })
}

/// Name and number of a node, as far as it is known.
fn node_text(node: NodeId, status: &StatusReport) -> String {
    match status.members.iter().find(|member| member.id == node) {
        Some(member) => format!("{} ({node})", escape(&member.name)),
        None => format!("node {node}"),
    }
}

fn cluster_line(status: &StatusReport) -> String {
    let name = escape(&status.cluster.name);
    let leader = match status.leader {
        Some(leader) => format!("{} leads term {}", node_text(leader, status), status.term),
        None => "nobody leads".to_owned(),
    };
    format!("cluster     {name}: {leader}, {}", quorum_text(&status.quorum, status))
}

fn quorum_text(quorum: &QuorumStatus, status: &StatusReport) -> String {
    let reachable = quorum.reachable.len();
    let all = quorum.voters.len();
    let missing = quorum.voters.iter().filter(|voter| !quorum.reachable.contains(voter));
    let missing: Vec<String> = missing.map(|voter| node_text(*voter, status)).collect();
    let missing = match missing.is_empty() {
        true => String::new(),
        false => format!(", not heard: {}", missing.join(", ")),
    };
    if quorum.is_held() {
        format!("{reachable} of {all} controllers heard{missing}")
    } else {
        let needed = quorum.needed();
        format!("NO QUORUM: {reachable} of {all} controllers heard, {needed} needed{missing}")
    }
}

fn job_lines(job: Option<&JobStatus>) -> Vec<String> {
    let Some(job) = job else {
        return vec!["run         none; `zbelastic run CONFIG` begins one".to_owned()];
    };
    let mut first = format!("run         {}: {}", escape(&job.name), phase_text(&job.phase));
    let _ = write!(first, ", step {}/{}", job.step, job.step_count);
    let parts = [
        job.loss.map(|loss| format!("loss {loss:.4}")),
        job.gnorm.map(|norm| format!("norm {}", three_digits(norm))),
        job.lr.map(|lr| format!("lr {}", scientific(lr))),
        job.step_ms.and_then(time_text),
        job.tokens_per_s.map(|rate| format!("{} tok/s", short_count(rate))),
        job.eta_s.and_then(eta_text),
    ];
    for part in parts.into_iter().flatten() {
        let _ = write!(first, "  {part}");
    }
    let mut lines = vec![first];
    if let (Some(digest), Some(step)) = (job.digest, job.digest_step) {
        lines.push(format!("digest      {digest} after step {step}"));
    }
    lines
}

fn time_text(ms: f64) -> Option<String> {
    Duration::try_from_secs_f64(ms / 1e3).ok().map(short_time)
}

fn eta_text(seconds: f64) -> Option<String> {
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    Some(format!("eta {}", duration_text(duration)))
}

fn phase_text(phase: &JobPhaseStatus) -> String {
    match phase {
        JobPhaseStatus::Running => "running".to_owned(),
        JobPhaseStatus::Waiting { reason } => format!("waiting ({})", escape(reason)),
        JobPhaseStatus::Paused => "paused".to_owned(),
        JobPhaseStatus::Done => "done".to_owned(),
        JobPhaseStatus::Stopped => "stopped".to_owned(),
        JobPhaseStatus::Halted { reason } => format!("HALTED ({})", escape(reason)),
    }
}

fn plan_line(plan: &PlanStatus, status: &StatusReport) -> String {
    let stages: Vec<String> = plan.stages.iter().map(|node| node_text(*node, status)).collect();
    let replicas = plan.replicas.max(1);
    let each = (stages.len() / replicas as usize).max(1);
    let pipelines: Vec<String> = stages.chunks(each).map(|stages| stages.join(" > ")).collect();
    let mut line = format!("plan        g{}: {}", plan.generation, pipelines.join(" | "));
    if replicas > 1 {
        let _ = write!(line, ", {}", pipelines_text(each as u64, replicas));
    }
    let _ = write!(line, ", {}, window {}", escape(&plan.schedule), plan.window);
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    match (plan.bubble_measured, plan.bubble_planned) {
        (Some(measured), Some(planned)) => {
            let _ = write!(line, ", bubble {} (plan {})", percent(measured), percent(planned));
        }
        (None, Some(planned)) => {
            let _ = write!(line, ", bubble planned {}", percent(planned));
        }
        (Some(measured), None) => {
            let _ = write!(line, ", bubble {}", percent(measured));
        }
        (None, None) => {}
    }
    let _ = write!(line, ", after step {}: {}", plan.from_step, escape(&plan.reason));
    if let Some(waits_for) = &plan.waits_for {
        let _ = write!(line, "; waiting: {}", escape(waits_for));
    }
    line
}

fn promise_line(promise: &PromiseStatus) -> String {
    match promise {
        PromiseStatus::Kept { copies } => {
            format!("promise     kept: losing {} loses no sealed step", any_nodes(*copies))
        }
        PromiseStatus::Fewer { copies, wanted } => format!(
            "promise     in part: losing {} loses no sealed step (elastic.copies = {wanted} takes {} \
             stages)",
            any_nodes(*copies),
            u64::from(*wanted) + 1
        ),
        PromiseStatus::Off { reason } => {
            format!("promise     off ({}): a loss goes back to a checkpoint", escape(reason))
        }
    }
}

fn any_nodes(count: u32) -> String {
    match count {
        1 => "any one node".to_owned(),
        2 => "any two nodes".to_owned(),
        several => format!("any {several} nodes"),
    }
}

fn commit_line(latency: &CommitLatencyStatus) -> String {
    let CommitLatencyStatus { p50_ms, max_ms, appends } = latency;
    let median = three_digits(*p50_ms);
    let longest = three_digits(*max_ms);
    format!("commits     took {median} ms, at most {longest} ms, in {appends} appends")
}

fn wait_line(wait: &VerdictWait) -> String {
    let VerdictWait { p50_ms, max_ms, steps } = wait;
    let median = three_digits(*p50_ms);
    let longest = three_digits(*max_ms);
    format!("verdicts    waited for {median} ms, at most {longest} ms, in {steps} steps")
}

/// Times of all passes of a layer, and the slowest link.
fn pace_line(pace: &PaceStatus) -> String {
    let ms = |us: f64| format!("{} ms", three_digits(us / 1e3));
    let layer = |layer: &LayerPace| {
        let LayerPace { layer, f_us, b_us, w_us, .. } = layer;
        format!("{} {}", escape(layer), ms(f_us + b_us + w_us))
    };
    let mut parts: Vec<String> = pace.layers.iter().map(layer).collect();
    let total_us = |link: &&LinkPace| link.latency_us + link.occupancy_us;
    let slowest = pace.links.iter().max_by(|a, b| total_us(a).total_cmp(&total_us(b)));
    parts.extend(slowest.map(|link| {
        let [latency, occupancy] = [link.latency_us, link.occupancy_us].map(ms);
        format!("slowest link {latency} and {occupancy} occupied")
    }));
    parts.extend(pace.verdict_us.map(|us| format!("verdict {}", ms(us))));
    format!("pace        {}", parts.join("  "))
}

/// How far members are with reading everything on their disks again: the one whose last pass ended
/// longest ago, and what was found.
fn scrub_line(status: &StatusReport) -> Option<String> {
    let scrubs = status.members.iter().filter_map(|member| Some((member, member.scrub?)));
    let scrubs: Vec<_> = scrubs.filter(|(_, scrub)| scrub.total.0 > 0).collect();
    if scrubs.is_empty() {
        return None;
    }
    let count = scrubs.len();
    let ended = scrubs.iter().filter_map(|(_, scrub)| scrub.last);
    let whole = ended.clone().count();
    let mut line = format!("disks       {whole} of {count} scrubbed (all data read again)");
    if let Some(oldest) = ended.map(|pass| pass.ended_at_ms).min() {
        let _ = write!(line, ", the oldest pass {}", ago(oldest, status));
    }
    let corrupt = |scrub: &ScrubStatus| scrub.corrupt + scrub.last.map_or(0, |pass| pass.corrupt);
    let found = scrubs.iter().filter(|(_, scrub)| corrupt(scrub) > 0);
    let found: Vec<String> = found
        .map(|(member, scrub)| format!("{} on {}", corrupt(scrub), node_text(member.id, status)))
        .collect();
    match found.is_empty() {
        true => line.push_str(", nothing damaged"),
        false => {
            let _ = write!(line, ", DAMAGED: {}", found.join(", "));
        }
    }
    Some(line)
}

fn ago(at_ms: u64, status: &StatusReport) -> String {
    let since = Duration::from_millis(status.at_ms.saturating_sub(at_ms));
    format!("{} ago", duration_text(since))
}

fn failure_line(failure: &FailureStatus, status: &StatusReport) -> String {
    let seconds = |ms: f64| format!("{} s", three_digits(ms / 1e3));
    let name = escape(&failure.name);
    let reason = escape(&failure.reason);
    let mut line =
        format!("{}: {name} ({}) lost: {reason}", ago(failure.at_ms, status), failure.node);
    if let Some(detected) = failure.detected_ms {
        let _ = write!(line, ", noticed in {}", seconds(detected));
    }
    match failure.next_seal_ms {
        Some(next) => {
            let _ = write!(line, ", next seal after {}", seconds(next));
        }
        None => line.push_str(", no seal since"),
    }
    if let Some(generation) = failure.generation {
        let _ = write!(line, ", g{generation}");
    }
    let FailureStatus { layers_moved, bytes_moved, bytes_floor, steps_lost, .. } = failure;
    let _ = write!(line, ", {layers_moved} layers moved ({bytes_moved}, floor {bytes_floor})");
    let _ = write!(line, ", {steps_lost} sealed steps lost");
    line
}

fn checkpoint_line(checkpoint: &CheckpointStatus, status: &StatusReport) -> String {
    let age = checkpoint.at_ms.map_or_else(String::new, |at| format!(", {}", ago(at, status)));
    let CheckpointStatus { step, bytes, copies, .. } = checkpoint;
    let holders: Vec<String> =
        checkpoint.holders.iter().map(|node| node_text(*node, status)).collect();
    let times = if *copies == 1 { "once".to_owned() } else { format!("{copies} times") };
    format!("step {step}{age}, {bytes}, each layer {times} or more on {}", holders.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::{LongActivity, ScrubPassStatus, WorkStatus, sample};
    use zbelastic_types::Bytes;

    fn check(status: &StatusReport, width: usize, expected: &str) {
        let found = render_status(status, width);
        assert_eq!(found, expected, "found:\n{found}");
    }

    #[test]
    fn disks_that_were_read_again_are_counted_and_what_was_found_is_named() {
        let mut status = sample::status();
        assert_eq!(scrub_line(&status), None);
        let (done, total) = (Bytes(10), Bytes(100));
        let last =
            Some(ScrubPassStatus { ended_at_ms: status.at_ms - 7_200_000, total, corrupt: 0 });
        let scrub = ScrubStatus { done, total, corrupt: 0, last };
        status.members[0].scrub = Some(scrub);
        status.members[1].scrub = Some(ScrubStatus { last: None, ..scrub });
        let expected = "disks       1 of 2 scrubbed (all data read again), the oldest pass 2h00 ago, \
                        nothing damaged";
        assert_eq!(scrub_line(&status).as_deref(), Some(expected));
        status.members[1].scrub = Some(ScrubStatus { corrupt: 2, ..scrub });
        let line = scrub_line(&status).expect("they reported");
        assert!(line.ends_with(", DAMAGED: 2 on gpu-a (2)"), "{line}");
    }

    #[test]
    fn a_member_that_receives_layers_is_shown_with_how_far_it_is() {
        let mut status = sample::status();
        let activity = Some(LongActivity::Receiving { done: Bytes(118), total: Bytes(290) });
        status.members[2].work = Some(WorkStatus { done: 1, activity });
        let text = render_status(&status, 80);
        assert!(
            text.contains("\nactivities  gpu-b (3) receives layers, 118 B of 290 B\n"),
            "{text}"
        );
    }

    #[test]
    fn a_run_in_its_middle() {
        let expected = "\
cluster     wiki: ctl-1 (1) leads term 4, 2 of 3 controllers heard, not heard: node 7
run         tiny: running, step 1280/10000  loss 3.2145  norm 0.812  lr 5.9e-4  412 ms  127k tok/s  eta 1h02
digest      0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c after step 1200
plan        g7: gpu-a (2) > gpu-b (3), zb-h1, window 1, bubble 2.1% (plan 1.8%), after step 1200: node gpu-c (4) lost: connection closed
promise     kept: losing any one node loses no sealed step
commits     took 0.800 ms, at most 6.50 ms, in 256 appends
verdicts    waited for 1.20 ms, at most 14.0 ms, in 64 steps
pace        attention 1.24 ms  head 8.80 ms  slowest link 0.180 ms and 0.420 ms occupied  verdict 0.950 ms

node  name   role        state                    stage  layers  memory                heard  road       address
   1  ctl-1  leader      present                                                              self       10.0.0.1:7000
   2  gpu-a  worker      present                      0  0-4     3.00 GiB of 8.00 GiB  40 ms  same host  10.0.0.2:7000
   3  gpu-b  worker      present                      1  5-9     3.00 GiB of 8.00 GiB  40 ms  same host  10.0.0.3:7000
   4  gpu-c  worker      lost: connection closed                 8.00 GiB                     none       10.0.0.4:7000
   5  gpu-d  worker      standby                                 8.00 GiB              40 ms  quic       10.0.0.5:7000
   6  ctl-2  controller  present                                                       40 ms  quic       10.0.0.6:7000

failures    1m02 ago: gpu-c (4) lost: connection closed, noticed in 0.004 s, next seal after 1.71 s, g7, 21 layers moved (512.0 MiB, floor 480.0 MiB), 0 sealed steps lost

checkpoints step 1200, 3m07 ago, 1.49 GiB, each layer 2 times or more on gpu-a (2), gpu-b (3)
            step 1100, 3m07 ago, 1.49 GiB, each layer 2 times or more on gpu-a (2), gpu-b (3)
";
        check(&sample::status(), usize::MAX, expected);
    }

    /// A cluster of one, with nothing to do.
    fn idle() -> StatusReport {
        let mut status = sample::status();
        status.members.truncate(1);
        status.quorum.voters.truncate(1);
        status.quorum.reachable.truncate(1);
        status.failures.clear();
        status.checkpoints.clear();
        status.counters.clear();
        let verdict_wait = None;
        let commit_latency = None;
        let status = StatusReport { verdict_wait, commit_latency, ..status };
        StatusReport { job: None, plan: None, promise: None, pace: None, ..status }
    }

    #[test]
    fn a_cluster_with_nothing_to_do() {
        let expected = "\
cluster     wiki: ctl-1 (1) leads term 4, 1 of 1 controllers heard
run         none; `zbelastic run CONFIG` begins one

node  name   role    state    stage  layers  memory  heard  road  address
   1  ctl-1  leader  present                                self  10.0.0.1:7000
";
        check(&idle(), 100, expected);
    }

    #[test]
    fn lines_are_cut_to_the_width() {
        let text = render_status(&sample::status(), 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60));
        assert!(text.contains("\nplan        g7: gpu-a (2) > gpu-b (3), zb-h1, window 1, bub…\n"));
    }

    #[test]
    fn a_lost_quorum_stands_out() {
        let mut status = idle();
        status.leader = None;
        status.quorum.voters = [1, 2, 3].map(NodeId).to_vec();
        let text = render_status(&status, 200);
        let expected = "cluster     wiki: nobody leads, NO QUORUM: 1 of 3 controllers heard, \
                        2 needed, not heard: node 2, node 3\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn every_phase_says_why() {
        let phase = |phase: JobPhaseStatus| {
            let job = JobStatus { phase, loss: None, digest: None, ..sample::job() };
            job_lines(Some(&job)).remove(0)
        };
        let reason = || "two nodes contradict each other".to_owned();
        let check = |found: String, expected: &str| assert!(found.contains(expected), "{found}");
        check(phase(JobPhaseStatus::Paused), "tiny: paused, step 1280/10000  norm 0.812");
        check(phase(JobPhaseStatus::Done), "tiny: done, step");
        check(phase(JobPhaseStatus::Stopped), "tiny: stopped, step");
        check(phase(JobPhaseStatus::Halted { reason: reason() }), "HALTED (two nodes contradict");
        check(phase(JobPhaseStatus::Waiting { reason: reason() }), "waiting (two nodes");
    }

    #[test]
    fn what_others_chose_moves_no_cursor() {
        let mut status = sample::status();
        let bad = || "\u{1b}[2J\u{202e}".to_owned();
        status.cluster.name = bad();
        status.members[1].name = bad();
        status.members[2].addresses = vec![bad()];
        status.failures[0].reason = bad();
        let job = status.job.as_mut().expect("there is one");
        (job.name, job.phase) = (bad(), JobPhaseStatus::Halted { reason: bad() });
        status.promise = Some(PromiseStatus::Off { reason: bad() });
        let plan = status.plan.as_mut().expect("there is one");
        (plan.reason, plan.schedule, plan.waits_for) = (bad(), bad(), Some(bad()));
        status.counters.insert(bad(), 1);
        let text = render_status(&status, usize::MAX);
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        assert!(text.matches("\\u{1b}[2J\\u{202e}").count() >= 10, "{text}");
    }
}
