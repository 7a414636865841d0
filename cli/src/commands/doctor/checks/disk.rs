//! The data folder: free space, whether writes are durable, and the users that may read it.

use std::io;
use std::time::Duration;

use zbelastic_trainer::plan;
use zbelastic_types::Bytes;
use zbelastic_wording::figures::duration_text;
use zbelastic_wording::is_storage_full;

use crate::commands::doctor::facts::{DiskFacts, DiskRead, FilesystemSpace, FolderState};
use crate::commands::doctor::finding::{DoctorCheck, DoctorFinding, Obstacle, Severity, level_of};

/// With less free space not even the log of a small run fits.
const FREE_LEAST: Bytes = Bytes(256 << 20);
/// Three checkpoints of a model of 124 million parameters, and one that is being written: 1.5 GiB
/// each.
const FREE_ENOUGH: Bytes = Bytes(6 << 30);
/// With fewer files not even the log begins.
const FILES_LEAST: u64 = 256;
/// The same checkpoints in pieces, with space for as much again.
const FILES_ENOUGH: u64 = 16_384;
/// No disk has written anything in less: the way there and back alone lasts as long.
const SYNC_UNREAL: Duration = Duration::from_micros(15);
/// The sync that a controller waits for before each answer; a turning disk needs about 15 ms.
const SYNC_SLOW: Duration = Duration::from_millis(50);
/// File systems in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems of containers, which go with them.
const LAYERED: [&str; 3] = ["overlay", "aufs", "fuse-overlayfs"];
/// File systems of other machines, with locks and caches of their own.
const REMOTE: [&str; 9] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs", "fuse.gcsfuse"];

pub(super) fn check_disk(facts: &DiskFacts) -> Vec<DoctorFinding> {
    let folder = check_folder(facts);
    if folder.level != Severity::Fine && facts.state == FolderState::NoFolder {
        return vec![folder];
    }
    let mut found = vec![folder];
    match &facts.space {
        Ok(space) => found.extend([check_space(space), check_files(space)]),
        Err(kind) => found.push(
            DoctorFinding::new(
                DoctorCheck::DiskSpace,
                Severity::Note,
                format!("cannot be seen: {kind}"),
            )
            .why("a full disk ends a node"),
        ),
    }
    let is_in_memory = has_type(facts, &IN_MEMORY);
    found.push(match &facts.sync_times {
        Ok(times) => check_sync(times, is_in_memory),
        Err(kind) => cannot_write(*kind),
    });
    found.extend(facts.last_read.as_ref().map(check_last_read));
    found
}

fn check_last_read(read: &DiskRead) -> DoctorFinding {
    let DiskRead { age, total, corrupt } = read;
    let what = format!("all of it, {total}, was read again {} ago", duration_text(*age));
    if *corrupt == 0 {
        return DoctorFinding::fine(DoctorCheck::DiskRead, format!("{what}: nothing damaged"));
    }
    let what = format!("{what}: {corrupt} damaged");
    DoctorFinding::new(DoctorCheck::DiskRead, Severity::Warning, what)
        .why("a disk that damages what lies on it does it again; other nodes had to have it sound")
        .hint("`zbelastic events` and `zbelastic ckpt verify` name what; check the disk")
}

fn has_type(facts: &DiskFacts, names: &[&str]) -> bool {
    facts.filesystem.as_deref().is_some_and(|found| names.contains(&found))
}

fn check_folder(facts: &DiskFacts) -> DoctorFinding {
    let folder = facts.folder.display();
    let kind = facts.filesystem.as_deref().unwrap_or("an unknown file system");
    let what = match facts.state {
        FolderState::Exists => format!("{folder}, on {kind}"),
        FolderState::Absent => format!("{folder} would be made, on {kind}"),
        FolderState::NoFolder => {
            let what = format!("{folder} is no folder");
            return DoctorFinding::new(
                DoctorCheck::DataFolder,
                Severity::Error(Obstacle::WrongState),
                what,
            )
            .hint("another --data-dir");
        }
    };
    let warning = |why: &str| {
        DoctorFinding::new(DoctorCheck::DataFolder, Severity::Warning, &what)
            .why(why)
            .hint("a --data-dir on a disk of this machine")
    };
    if has_type(facts, &IN_MEMORY) {
        warning("identity, log and checkpoints are gone when the machine starts anew")
    } else if has_type(facts, &LAYERED) {
        warning("identity, log and checkpoints are gone when the container is removed")
    } else if has_type(facts, &REMOTE) {
        warning("locks and what is written behave differently on a file system of another machine")
    } else {
        DoctorFinding::fine(DoctorCheck::DataFolder, what)
    }
}

fn check_space(space: &FilesystemSpace) -> DoctorFinding {
    if space.is_read_only {
        let level = Severity::Error(Obstacle::WrongState);
        return DoctorFinding::new(DoctorCheck::DiskSpace, level, "the file system is read-only")
            .hint("mount it to be written, or another --data-dir");
    }
    let level = level_of(space.free, FREE_LEAST, FREE_ENOUGH);
    let what = format!("{} free", space.free);
    if level == Severity::Fine {
        return DoctorFinding::fine(DoctorCheck::DiskSpace, what);
    }
    DoctorFinding::new(DoctorCheck::DiskSpace, level, what)
        .why(format!(
            "checkpoints of a model of 124 million parameters take {FREE_ENOUGH}, and a full disk ends a node"
        ))
        .hint("free some, or another --data-dir")
}

fn check_files(space: &FilesystemSpace) -> DoctorFinding {
    if space.files == 0 {
        return DoctorFinding::fine(DoctorCheck::DiskFiles, "not counted by the file system");
    }
    let level = level_of(space.files_free, FILES_LEAST, FILES_ENOUGH);
    let what = format!("{} more can be made", space.files_free);
    if level == Severity::Fine {
        return DoctorFinding::fine(DoctorCheck::DiskFiles, what);
    }
    DoctorFinding::new(DoctorCheck::DiskFiles, level, what)
        .why("checkpoints are kept in pieces, each a file, and a disk may be full of files")
        .hint("remove some, or another --data-dir")
}

fn cannot_write(kind: io::ErrorKind) -> DoctorFinding {
    let obstacle = if is_storage_full(&io::Error::from(kind)) {
        Obstacle::TooLittle
    } else {
        Obstacle::WrongState
    };
    DoctorFinding::new(
        DoctorCheck::DiskSync,
        Severity::Error(obstacle),
        format!("cannot write there: {kind}"),
    )
    .hint("make it writable for this user, or another --data-dir")
}

/// `times` are those of single writes.
fn check_sync(times: &[Duration], is_in_memory: bool) -> DoctorFinding {
    let Some(median) = plan::median(times.iter().copied(), Duration::cmp) else {
        return DoctorFinding::new(
            DoctorCheck::DiskSync,
            Severity::Warning,
            "no write was done in seconds",
        )
        .why("a controller waits for one before each answer")
        .hint("another disk");
    };
    let what = format!("half of {} writes took up to {}", times.len(), time_text(median));
    // In memory there is nothing to wait for; the finding about the folder reports that it is in
    // memory.
    if median < SYNC_UNREAL && !is_in_memory {
        return DoctorFinding::new(DoctorCheck::DiskSync, Severity::Warning, what)
            .why("no disk is that quick: what is said to be written may be lost with the power")
            .hint("mount without nobarrier, and run without eatmydata");
    }
    if median > SYNC_SLOW {
        return DoctorFinding::new(DoctorCheck::DiskSync, Severity::Warning, what)
            .why("a controller waits for one before each answer")
            .hint("a quicker disk for controllers");
    }
    DoctorFinding::fine(DoctorCheck::DiskSync, what)
}

fn time_text(time: Duration) -> String {
    if time < Duration::from_millis(10) {
        format!("{} us", time.as_micros())
    } else {
        format!("{} ms", time.as_millis())
    }
}

pub(super) fn check_permissions(faults: &[String]) -> Vec<DoctorFinding> {
    if faults.is_empty() {
        return vec![DoctorFinding::fine(DoctorCheck::Permissions, "nothing is open to others")];
    }
    let level = Severity::Error(Obstacle::WrongState);
    let finding = |fault: &String| {
        DoctorFinding::new(DoctorCheck::Permissions, level, fault)
            .why("anyone who reads the key can act as this node, and a node with such a key does not start")
            .hint("chmod go-rwx, and make the identity anew if others were on this machine")
    };
    faults.iter().map(finding).collect()
}

#[cfg(test)]
mod tests;
