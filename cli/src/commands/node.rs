//! `node list`, `node show`, `node drain`, `node remove`.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{
    ApiRequest, DiskStatus, MemberPath, MemberRole, MemberState, MemberStatus, ScrubStatus,
    StatusReport, escape,
};
use zbelastic_wording::figures::duration_text;
use zbelastic_wording::{CommandError, CommandFailure};

use super::reach::{confirm, connect, write_json};
use super::select::select_node;
use super::table::{ColumnAlign, TextTable};
use crate::args::{NodeCommand, NodeRemoveArgs};

/// Runs a `node` command.
///
/// # Errors
/// If the cluster refuses, or `out` cannot be written.
pub fn run(command: &NodeCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        NodeCommand::List(args) => list(args.json, &mut connect(&args.client)?, out),
        NodeCommand::Show { node, read } => show(node, read.json, &mut connect(&read.client)?, out),
        NodeCommand::Drain { node, client } => drain(node, &mut connect(client)?, out),
        NodeCommand::Remove(args) => remove(args, &mut connect(&args.client)?, out),
    }
}

fn list(
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let status = client.status().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &status.members);
    }
    out.write_all(render_members(&status).render(usize::MAX).as_bytes())?;
    Ok(())
}

fn show(
    typed: &str,
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let status = client.status().map_err(CommandFailure::from)?;
    let member = select_node(&status.members, typed)?;
    if is_json {
        return write_json(out, member);
    }
    out.write_all(render_member(member, &status).as_bytes())?;
    Ok(())
}

fn drain(typed: &str, client: &mut ApiClient<'_>, out: &mut dyn Write) -> Result<(), CommandError> {
    let status = client.status().map_err(CommandFailure::from)?;
    let node = select_node(&status.members, typed)?.id;
    let summary = client.change(ApiRequest::NodeDrain { node }).map_err(CommandFailure::from)?;
    writeln!(out, "{}", escape(&summary.what))?;
    Ok(())
}

fn remove(
    args: &NodeRemoveArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let status = client.status().map_err(CommandFailure::from)?;
    let member = select_node(&status.members, &args.node)?;
    let node = member.id;
    let force = args.force;
    let name = escape(&member.name);
    confirm(args.yes, &format!("node {name} ({node}) is removed for good"))?;
    let summary =
        client.change(ApiRequest::NodeRemove { node, force }).map_err(CommandFailure::from)?;
    writeln!(out, "{}", escape(&summary.what))?;
    Ok(())
}

/// Members as a table.
#[must_use]
pub fn render_members(status: &StatusReport) -> TextTable {
    let left = ColumnAlign::Left;
    let right = ColumnAlign::Right;
    let columns = [
        ("node", right),
        ("name", left),
        ("role", left),
        ("state", left),
        ("stage", right),
        ("layers", left),
        ("memory", left),
        ("heard", right),
        ("road", left),
        ("address", left),
    ];
    let mut table = TextTable::new(&columns);
    for member in &status.members {
        table.row(vec![
            member.id.to_string(),
            member.name.clone(),
            role_text(member, status).to_owned(),
            standing_text(member),
            member.stage.map_or_else(String::new, |stage| stage.to_string()),
            member.layers.clone().unwrap_or_default(),
            memory_text(member),
            member.last_heard_ms.map_or_else(String::new, silence_text),
            path_text(member.road).to_owned(),
            member.addresses.first().cloned().unwrap_or_default(),
        ]);
    }
    table
}

fn role_text(member: &MemberStatus, status: &StatusReport) -> &'static str {
    match member.role {
        MemberRole::Controller if status.leader == Some(member.id) => "leader",
        MemberRole::Controller => "controller",
        MemberRole::Worker => "worker",
    }
}

fn standing_text(member: &MemberStatus) -> String {
    let is_standby = member.role == MemberRole::Worker && member.stage.is_none();
    match &member.standing {
        MemberState::Present if member.left_out.is_some() => "left out".to_owned(),
        MemberState::Present if member.disk.is_some_and(|disk| disk.low) => "disk low".to_owned(),
        MemberState::Present if is_standby => "standby".to_owned(),
        MemberState::Present => "present".to_owned(),
        MemberState::Draining => "draining".to_owned(),
        MemberState::Lost { reason } => format!("lost: {reason}"),
    }
}

/// The round trip to a member, if it is known.
pub fn round_trip_text(member: &MemberStatus) -> Option<String> {
    member.round_trip_us.map(|us| format!("{:.2} ms", us as f64 / 1e3))
}

fn memory_text(member: &MemberStatus) -> String {
    match (member.role, member.memory_used) {
        (MemberRole::Controller, used) => used.map_or_else(String::new, |used| used.to_string()),
        (MemberRole::Worker, None) => member.memory.to_string(),
        (MemberRole::Worker, Some(used)) => format!("{used} of {}", member.memory),
    }
}

fn disk_text(DiskStatus { free, total, low }: DiskStatus) -> String {
    let low = if low { ": low, a checkpoint may not fit" } else { "" };
    format!("{free} of {total} free{low}")
}

/// As in `1.2 GiB of 3.0 GiB, the pass before ended 3 h ago, nothing damaged`.
fn scrub_text(scrub: &ScrubStatus, now_ms: u64) -> String {
    let ScrubStatus { done, total, corrupt, last } = scrub;
    let damaged = |count: u64| match count {
        0 => "nothing damaged".to_owned(),
        count => format!("{count} DAMAGED"),
    };
    let before = match last {
        Some(pass) => {
            let age = Duration::from_millis(now_ms.saturating_sub(pass.ended_at_ms));
            let found = damaged(pass.corrupt);
            format!("the pass before ended {} ago, {found}", duration_text(age))
        }
        None => "the first pass".to_owned(),
    };
    match corrupt {
        0 => format!("{done} of {total}; {before}"),
        count => format!("{done} of {total}, {}; {before}", damaged(*count)),
    }
}

/// As in `40 ms` and `12.3 s`.
fn silence_text(milliseconds: u64) -> String {
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        more => format!("{:.1} s", more as f64 / 1e3),
    }
}

fn path_text(path: MemberPath) -> &'static str {
    match path {
        MemberPath::Own => "self",
        MemberPath::Quic => "quic",
        MemberPath::SameHost => "same host",
        MemberPath::Down => "none",
    }
}

/// One member, a line for each thing that is known.
#[must_use]
pub fn render_member(member: &MemberStatus, status: &StatusReport) -> String {
    let lines = [
        ("name", Some(member.name.clone())),
        ("number", Some(member.id.to_string())),
        ("role", Some(role_text(member, status).to_owned())),
        ("state", Some(standing_text(member))),
        ("incarnation", Some(member.incarnation.to_string())),
        ("addresses", Some(member.addresses.join(", "))),
        ("zone", Some(member.zone.clone()).filter(|zone| !zone.is_empty())),
        ("road", Some(path_text(member.road).to_owned())),
        ("heard", member.last_heard_ms.map(|age_ms| format!("{} ago", silence_text(age_ms)))),
        ("round trip", round_trip_text(member)),
        ("log behind", member.log_behind.map(|entries| format!("{entries} entries"))),
        ("device", Some(member.device.clone())),
        ("left out", member.left_out.clone()),
        ("disk", member.disk.map(disk_text)),
        ("read again", member.scrub.as_ref().map(|scrub| scrub_text(scrub, status.at_ms))),
        ("memory", Some(memory_text(member)).filter(|text| !text.is_empty())),
        ("planned", member.memory_planned.map(|planned| planned.to_string())),
        ("stage", member.stage.map(|stage| stage.to_string())),
        ("layers", member.layers.clone()),
        ("copies of", stages_text(&member.copies_stages)),
    ];
    let mut text = String::new();
    for (title, value) in lines {
        if let Some(value) = value {
            let _ = writeln!(text, "{title:<12} {}", escape(&value));
        }
    }
    text
}

/// As in `stages 0, 1`; nothing of none.
fn stages_text(stages: &[u32]) -> Option<String> {
    match stages {
        [] => None,
        [stage] => Some(format!("stage {stage}")),
        several => {
            let words: Vec<_> = several.iter().map(u32::to_string).collect();
            Some(format!("stages {}", words.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use zbelastic_types::NodeId;

    use super::*;
    use crate::args::{Cli, CliCommand};
    use zbelastic_api::sample::{self, scripted};
    use zbelastic_api::{ApiAnswer, ApiRefusal, ChangeSummary, WrongState};
    use zbelastic_wording::FailureCode;

    #[test]
    fn members_are_printed_in_columns() {
        let expected = "\
node  name   role        state                    stage  layers  memory                heard  road       address
   1  ctl-1  leader      present                                                              self       10.0.0.1:7000
   2  gpu-a  worker      present                      0  0-4     3.00 GiB of 8.00 GiB  40 ms  same host  10.0.0.2:7000
   3  gpu-b  worker      present                      1  5-9     3.00 GiB of 8.00 GiB  40 ms  same host  10.0.0.3:7000
   4  gpu-c  worker      lost: connection closed                 8.00 GiB                     none       10.0.0.4:7000
   5  gpu-d  worker      standby                                 8.00 GiB              40 ms  quic       10.0.0.5:7000
   6  ctl-2  controller  present                                                       40 ms  quic       10.0.0.6:7000
";
        assert_eq!(render_members(&sample::status()).render(usize::MAX), expected);
    }

    #[test]
    fn one_member_is_printed_in_lines() {
        let status = sample::status();
        let expected = "\
name         gpu-a
number       2
role         worker
state        present
incarnation  12
addresses    10.0.0.2:7000
road         same host
heard        40 ms ago
round trip   0.31 ms
device       cpu
memory       3.00 GiB of 8.00 GiB
planned      4.00 GiB
stage        0
layers       0-4
copies of    stage 1
";
        assert_eq!(render_member(&status.members[1], &status), expected);
    }

    fn run_remove(line: &str, answer: ApiAnswer) -> (Result<(), CommandError>, Vec<ApiRequest>) {
        let parsed = Cli::try_parse_from(line.split_whitespace()).expect("legal").command;
        let CliCommand::Node(NodeCommand::Remove(args)) = parsed else { panic!("remove") };
        let status = ApiAnswer::Status(Box::new(sample::status()));
        let (mut client, requests) = scripted(vec![Ok(status), Ok(answer)]);
        let ended = remove(&args, &mut client, &mut Vec::new());
        let requests = requests.borrow().clone();
        (ended, requests)
    }

    #[test]
    fn a_node_is_removed_by_its_number() {
        let summary = ChangeSummary { what: "removed".to_owned(), nodes: vec![NodeId(4)] };
        let (ended, requests) =
            run_remove("zbelastic node remove gpu-c --yes", ApiAnswer::Done(summary));
        assert!(ended.is_ok());
        assert_eq!(requests[1], ApiRequest::NodeRemove { node: NodeId(4), force: false });
        let name = "gpu-a".to_owned();
        let refused = ApiAnswer::Refused(ApiRefusal::WrongState(WrongState::NodeLive { name }));
        let (ended, _) = run_remove("zbelastic node remove 2 --yes", refused);
        let Err(CommandError::Failed(failure)) = ended else { panic!("refused") };
        assert_eq!(failure.code, FailureCode::WrongState);
    }

    #[test]
    fn nothing_is_removed_without_a_yes() {
        // Tests have no terminal on both ends.
        let parsed = Cli::try_parse_from(["zbelastic", "node", "remove", "4"]).expect("legal");
        let CliCommand::Node(NodeCommand::Remove(args)) = parsed.command else { panic!("remove") };
        let status = ApiAnswer::Status(Box::new(sample::status()));
        let (mut client, requests) = scripted(vec![Ok(status)]);
        if crate::terminal::has_person() {
            return;
        }
        let ended = remove(&args, &mut client, &mut Vec::new());
        let Err(CommandError::Failed(failure)) = ended else { panic!("nobody said yes") };
        assert_eq!((failure.code, requests.borrow().len()), (FailureCode::Usage, 1));
    }
}
