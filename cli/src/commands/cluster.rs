//! `cluster info`, `cluster rotate-ca`, `cluster backup`, `cluster recover`.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{
    ApiRefusal, ApiRequest, ClusterInfo, FormatStatus, HexDigest, RotationProgress, RotationStatus,
    escape,
};
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail, cannot_write};

use super::clock::date_text;
use super::reach::{confirm, connect, write_json};
use crate::args::{ClusterCommand, RecoverArgs, RotateCaArgs};
use crate::membership;

/// Most bytes of a backup: the agreed state is small; weights are not in it.
const BACKUP_BYTES_MAX: u64 = 256 << 20;
/// A file of secrets: its owner alone reads it.
const OWNER_ONLY: u32 = 0o600;

/// Runs a `cluster` command.
///
/// # Errors
/// If the cluster refuses, or a file or `out` cannot be written.
pub fn run(command: &ClusterCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        ClusterCommand::Info(args) => info(args.json, &mut connect(&args.client)?, out),
        ClusterCommand::RotateCa(args) => rotate_ca(args, &mut connect(&args.client)?, out),
        ClusterCommand::Backup { file, client } => backup(file, &mut connect(client)?, out),
        ClusterCommand::Recover(args) => recover(args, out),
    }
}

fn info(
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let info = client.cluster().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &info);
    }
    out.write_all(render_info(&info).as_bytes())?;
    Ok(())
}

/// A cluster, a line for each thing that is known.
#[must_use]
pub fn render_info(info: &ClusterInfo) -> String {
    let voters: Vec<String> = info
        .voters
        .iter()
        .map(|voter| format!("{} ({}) {}", voter.name, voter.id, voter.addresses.join(" ")))
        .collect();
    let tolerated = match info.failures_tolerated {
        0 => "0 failures; add 2 controllers to tolerate 1: `zbelastic join --role controller`"
            .to_owned(),
        1 => "1 failure".to_owned(),
        several => format!("{several} failures"),
    };
    let leader = info.leader.map_or_else(|| "nobody".to_owned(), |node| format!("node {node}"));
    let lines = [
        ("name", Some(info.name.clone())),
        ("id", Some(info.id.clone())),
        ("founded", info.founded_ms.map(date_text)),
        ("authority", Some(info.authority.clone())),
        ("its change", info.rotation.as_ref().map(rotation_text)),
        ("version", Some(info.version.clone())),
        ("log format", format_text(&info.format)),
        ("leader", Some(format!("{leader}, term {}", info.term))),
        ("agreed", Some(format!("{} entries", info.committed))),
        ("controllers", Some(voters.join(", "))),
        ("tolerates", Some(tolerated)),
    ];
    let mut text = String::new();
    for (title, value) in lines {
        if let Some(value) = value {
            let _ = writeln!(text, "{title:<12} {}", escape(&value));
        }
    }
    text
}

/// The format of the log, and the nodes that hold back a newer one.
fn format_text(FormatStatus { agreed, held_back_by }: &FormatStatus) -> Option<String> {
    let nodes: Vec<String> = held_back_by.iter().map(ToString::to_string).collect();
    match (agreed, nodes.is_empty()) {
        (0, _) => None,
        (agreed, true) => Some(agreed.to_string()),
        (agreed, false) => Some(format!(
            "{agreed}; a newer one waits for programs that read it, or for nodes that are away: {}",
            nodes.join(", ")
        )),
    }
}

/// How far a change of the authority is, in a line.
fn rotation_text(rotation: &RotationStatus) -> String {
    let authority = &rotation.authority;
    let mut text = match rotation.progress {
        RotationProgress::Announced => format!("{authority} is announced and believed"),
        RotationProgress::Issuing => {
            format!("{authority} issues, the one before is still believed")
        }
        RotationProgress::Retired => "over, the one before is retired".to_owned(),
    };
    if !rotation.waits_for.is_empty() {
        let _ = write!(text, "; waits for {}", rotation.waits_for.join(", "));
    }
    if let Some(until_ms) = rotation.people_until_ms {
        let until = date_text(until_ms);
        let _ = write!(
            text,
            "; waits for people until {until}, or `zbelastic cluster rotate-ca --force`"
        );
    }
    text
}

fn rotate_ca(
    args: &RotateCaArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let force = args.force;
    let consequence = match force {
        true => {
            "the old authority is retired as soon as all who are there have other certificates; people who are \
                 away are let in anew"
        }
        false => "the cluster gets another certificate authority",
    };
    confirm(args.yes, consequence)?;
    let summary =
        client.change(ApiRequest::ClusterRotateCa { force }).map_err(CommandFailure::from)?;
    summary.what.lines().try_for_each(|line| writeln!(out, "{}", escape(line)))?;
    Ok(())
}

fn backup(
    file: &Path,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    // Before anything is sent; created anew when it is written, so that nothing is written over.
    if file.exists() {
        let error = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(cannot_write(file, &error).into());
    }
    let (bytes, digest) = fetch_backup(client)?;
    write_secret(file, &bytes).map_err(|error| cannot_write(file, &error))?;
    let size = Bytes(bytes.len() as u64);
    writeln!(out, "{}: {size}, blake3 {digest}", file.display())?;
    Ok(())
}

/// The whole backup, checked.
///
/// # Errors
/// If it does not come, or not as a whole.
pub fn fetch_backup(client: &mut ApiClient<'_>) -> Result<(Vec<u8>, HexDigest), CommandFailure> {
    let first = client.backup_piece(None, 0)?;
    let expected = first.digest;
    let total = first.total;
    let out_of_order = |what: String| CommandFailure::new(FailureCode::VerificationFailed, what);
    if total > BACKUP_BYTES_MAX {
        let found = Bytes(total);
        let max = Bytes(BACKUP_BYTES_MAX);
        return Err(out_of_order(format!("a backup of {found}, at most {max} expected")));
    }
    let mut bytes: Vec<u8> = Vec::new();
    let mut piece = first;
    loop {
        let offset = bytes.len() as u64;
        let length = piece.bytes.len() as u64;
        let is_next = piece.offset == offset && piece.digest == expected && piece.total == total;
        if !is_next || offset + length > total || (length == 0 && offset < total) {
            let what =
                format!("a piece of {length} bytes at {}, requested at {offset}", piece.offset);
            return Err(out_of_order(what));
        }
        bytes.extend(piece.bytes);
        if bytes.len() as u64 == total {
            break;
        }
        piece = client.backup_piece(Some(expected), bytes.len() as u64)?;
    }
    let found = HexDigest::from(blake3::hash(&bytes));
    if found == expected {
        return Ok((bytes, found));
    }
    Err(ApiRefusal::Damaged { what: "the backup".to_owned(), expected, found }.failure())
}

fn write_secret(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create_new(true).mode(OWNER_ONLY).open(file)?;
    let written = opened.write_all(bytes).and_then(|()| opened.sync_all());
    if written.is_err() {
        // Half a backup is none; if it cannot be removed either, the first error is returned.
        let _ = fs::remove_file(file);
    }
    written
}

fn recover(args: &RecoverArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    if let Some(process) = folder.holder()? {
        let what = format!("process {process} runs on {}", folder.root().display());
        let mut failure = CommandFailure::new(FailureCode::WrongState, what);
        let detail =
            FailureDetail::new("a cluster is recovered from a folder that no process uses");
        failure.details = vec![detail.hint("first `zbelastic leave`")];
        return Err(failure.into());
    }
    let shown = folder.root().display();
    confirm(args.yes, &format!("{shown} becomes a new cluster; members of the old are strangers"))?;
    let backup_folder = membership::recover(args)?;
    writeln!(out, "a new cluster; what it was made of is kept in {}", backup_folder.display())?;
    writeln!(out, "start it: zbelastic init --data-dir {shown}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use zbelastic_types::NodeId;

    use super::*;
    use zbelastic_api::sample::{self, NOW_MS, scripted};
    use zbelastic_api::{ApiAnswer, BackupPiece};

    fn cluster_info(failures_tolerated: u32) -> ClusterInfo {
        ClusterInfo {
            name: "wiki\u{1b}".to_owned(),
            id: "3f".repeat(16),
            founded_ms: Some(NOW_MS),
            authority: "ab".repeat(4),
            rotation: None,
            version: "0.1.0".to_owned(),
            format: FormatStatus { agreed: 9, held_back_by: vec![NodeId(2), NodeId(7)] },
            leader: Some(NodeId(1)),
            term: 4,
            committed: 1290,
            voters: vec![sample::member(1, "ctl-1", true), sample::member(6, "ctl-2", true)],
            failures_tolerated,
        }
    }

    #[test]
    fn a_cluster_is_printed_in_lines() {
        let expected = "\
name         wiki\\u{1b}
id           3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f
founded      2026-11-21 12:01:03Z
authority    abababab
version      0.1.0
log format   9; a newer one waits for programs that read it, or for nodes that are away: 2, 7
leader       node 1, term 4
agreed       1290 entries
controllers  ctl-1 (1) 10.0.0.1:7000, ctl-2 (6) 10.0.0.6:7000
tolerates    0 failures; add 2 controllers to tolerate 1: `zbelastic join --role controller`
";
        assert_eq!(render_info(&cluster_info(0)), expected);
        assert!(render_info(&cluster_info(2)).ends_with("tolerates    2 failures\n"));
    }

    #[test]
    fn a_change_of_the_authority_is_printed_with_the_members_it_waits_for() {
        let rotation = |progress, waits_for: &[&str], people_until_ms| {
            let waits_for = waits_for.iter().copied().map(str::to_owned).collect();
            let authority = "cd".repeat(4);
            rotation_text(&RotationStatus { authority, progress, waits_for, people_until_ms })
        };
        let announced = rotation(RotationProgress::Announced, &["w-1", "w-2"], None);
        assert_eq!(announced, "cdcdcdcd is announced and believed; waits for w-1, w-2");
        let issuing = rotation(RotationProgress::Issuing, &[], Some(NOW_MS));
        let expected = "cdcdcdcd issues, the one before is still believed; waits for people until \
                        2026-11-21 12:01:03Z, or `zbelastic cluster rotate-ca --force`";
        assert_eq!(issuing, expected);
        let retired = rotation(RotationProgress::Retired, &[], None);
        assert_eq!(retired, "over, the one before is retired");
    }

    fn piece(bytes: &[u8], of: &[u8], offset: u64) -> ApiAnswer {
        let digest = blake3::hash(of).into();
        ApiAnswer::Backup(BackupPiece {
            digest,
            total: of.len() as u64,
            offset,
            bytes: bytes.to_vec(),
        })
    }

    fn backed_up(file: &Path, answers: Vec<ApiAnswer>) -> Result<(), FailureCode> {
        let (mut client, _) = scripted(answers.into_iter().map(Ok).collect());
        backup(file, &mut client, &mut Vec::new()).map_err(|stop| match stop {
            CommandError::Failed(failure) => failure.code,
            CommandError::Output(error) => panic!("{error}"),
        })
    }

    #[test]
    fn a_backup_is_whole_and_its_owners_alone() {
        let parent = tempfile::tempdir().expect("a folder");
        let file = parent.path().join("wiki.backup");
        let all = b"everything agreed on";
        let answers = || vec![piece(&all[..8], all, 0), piece(&all[8..], all, 8)];
        assert_eq!(backed_up(&file, answers()), Ok(()));
        assert_eq!(fs::read(&file).expect("written"), all);
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ONLY);
        assert_eq!(backed_up(&file, answers()), Err(FailureCode::Usage));
    }

    #[test]
    fn a_damaged_backup_is_not_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let file = parent.path().join("wiki.backup");
        let all = b"everything agreed on";
        let wrong = [
            vec![piece(b"everything agreed 0n", all, 0)],
            vec![piece(&all[..8], all, 0), piece(&all[7..], all, 7)],
            vec![piece(&all[..8], all, 0), piece(b"", all, 8)],
            vec![piece(&all[..8], all, 0), piece(&all[8..], b"another backup of it", 8)],
        ];
        for answers in wrong {
            assert_eq!(backed_up(&file, answers), Err(FailureCode::VerificationFailed));
            assert!(!file.exists());
        }
    }
}
