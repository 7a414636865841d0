//! Each threshold from both sides.

use std::io;
use std::time::Duration;

use super::{
    Bytes, DiskFacts, DiskRead, DoctorCheck, DoctorFinding, FILES_ENOUGH, FILES_LEAST, FREE_ENOUGH,
    FREE_LEAST, FilesystemSpace, FolderState, Obstacle, SYNC_SLOW, SYNC_UNREAL, Severity,
    check_disk, check_permissions, check_sync, time_text,
};

const SPACE: FilesystemSpace =
    FilesystemSpace { free: FREE_ENOUGH, files_free: 1 << 20, files: 1 << 21, is_read_only: false };
const TOO_LITTLE: Severity = Severity::Error(Obstacle::TooLittle);
const WRONG_STATE: Severity = Severity::Error(Obstacle::WrongState);

fn disk(space: FilesystemSpace) -> DiskFacts {
    DiskFacts {
        folder: "data".into(),
        state: FolderState::Exists,
        space: Ok(space),
        filesystem: Some("ext4".to_owned()),
        sync_times: Ok(vec![Duration::from_millis(1)]),
        last_read: None,
    }
}

fn finding(facts: &DiskFacts, check: DoctorCheck) -> DoctorFinding {
    let found = check_disk(facts).into_iter().find(|finding| finding.check == check);
    found.expect("it was looked at")
}

#[test]
fn space_is_judged_by_what_checkpoints_take() {
    let level = |bytes| {
        finding(&disk(FilesystemSpace { free: Bytes(bytes), ..SPACE }), DoctorCheck::DiskSpace)
            .level
    };
    assert_eq!(level(FREE_LEAST.0 - 1), TOO_LITTLE);
    assert_eq!(level(FREE_LEAST.0), Severity::Warning);
    assert_eq!(level(FREE_ENOUGH.0 - 1), Severity::Warning);
    assert_eq!(level(FREE_ENOUGH.0), Severity::Fine);
    let read_only = FilesystemSpace { is_read_only: true, ..SPACE };
    assert_eq!(finding(&disk(read_only), DoctorCheck::DiskSpace).level, WRONG_STATE);
}

#[test]
fn files_are_judged_where_they_are_counted() {
    let level = |files_free, files| {
        finding(&disk(FilesystemSpace { files_free, files, ..SPACE }), DoctorCheck::DiskFiles).level
    };
    assert_eq!(level(FILES_LEAST - 1, 1 << 20), TOO_LITTLE);
    assert_eq!(level(FILES_LEAST, 1 << 20), Severity::Warning);
    assert_eq!(level(FILES_ENOUGH - 1, 1 << 20), Severity::Warning);
    assert_eq!(level(FILES_ENOUGH, 1 << 20), Severity::Fine);
    assert_eq!(level(0, 0), Severity::Fine);
}

#[test]
fn space_that_cannot_be_read_is_worth_a_note() {
    let hidden = DiskFacts { space: Err(io::ErrorKind::PermissionDenied), ..disk(SPACE) };
    assert_eq!(finding(&hidden, DoctorCheck::DiskSpace).level, Severity::Note);
}

#[test]
fn writes_are_neither_too_slow_nor_too_quick_to_be_true() {
    let level = |time, is_in_memory| check_sync(&[time], is_in_memory).level;
    let tick = Duration::from_nanos(1);
    assert_eq!(level(SYNC_UNREAL - tick, false), Severity::Warning);
    assert_eq!(level(SYNC_UNREAL - tick, true), Severity::Fine);
    assert_eq!(level(SYNC_UNREAL, false), Severity::Fine);
    assert_eq!(level(SYNC_SLOW, false), Severity::Fine);
    assert_eq!(level(SYNC_SLOW + tick, false), Severity::Warning);
    assert_eq!(check_sync(&[], false).level, Severity::Warning);
}

#[test]
fn one_slow_write_is_not_what_half_of_them_take() {
    let mut times = vec![Duration::from_micros(300); 19];
    times.insert(0, Duration::from_secs(2));
    let finding = check_sync(&times, false);
    assert_eq!(finding.level, Severity::Fine);
    assert_eq!(finding.what, "half of 20 writes took up to 300 us");
    assert_eq!(time_text(Duration::from_micros(9999)), "9999 us");
    assert_eq!(time_text(Duration::from_millis(10)), "10 ms");
}

#[test]
fn a_disk_that_takes_nothing_is_full_or_not_ours() {
    let level = |kind| {
        finding(&DiskFacts { sync_times: Err(kind), ..disk(SPACE) }, DoctorCheck::DiskSync).level
    };
    assert_eq!(level(io::ErrorKind::StorageFull), TOO_LITTLE);
    assert_eq!(level(io::ErrorKind::QuotaExceeded), TOO_LITTLE);
    assert_eq!(level(io::ErrorKind::PermissionDenied), WRONG_STATE);
    assert_eq!(level(io::ErrorKind::ReadOnlyFilesystem), WRONG_STATE);
}

#[test]
fn what_does_not_stay_is_warned_of() {
    let level = |kind: Option<&str>| {
        let filesystem = kind.map(str::to_owned);
        finding(&DiskFacts { filesystem, ..disk(SPACE) }, DoctorCheck::DataFolder).level
    };
    assert_eq!(level(Some("ext4")), Severity::Fine);
    assert_eq!(level(Some("xfs")), Severity::Fine);
    assert_eq!(level(None), Severity::Fine);
    for kind in ["tmpfs", "overlay", "nfs4"] {
        assert_eq!(level(Some(kind)), Severity::Warning, "{kind}");
    }
}

#[test]
fn a_folder_is_there_or_will_be_and_is_nothing_else() {
    let finding = |state| finding(&DiskFacts { state, ..disk(SPACE) }, DoctorCheck::DataFolder);
    assert_eq!(finding(FolderState::Exists).what, "data, on ext4");
    assert_eq!(finding(FolderState::Absent).what, "data would be made, on ext4");
    assert_eq!(finding(FolderState::NoFolder).level, WRONG_STATE);
    let nothing_else = check_disk(&DiskFacts { state: FolderState::NoFolder, ..disk(SPACE) });
    assert_eq!(nothing_else.len(), 1);
}

#[test]
fn each_open_key_is_an_error() {
    assert_eq!(check_permissions(&[])[0].level, Severity::Fine);
    let found = check_permissions(&["key.pem is open".to_owned(), "identity is open".to_owned()]);
    assert_eq!(found.iter().map(|finding| finding.level).collect::<Vec<_>>(), [WRONG_STATE; 2]);
}

#[test]
fn what_was_found_when_everything_was_read_again_is_a_warning() {
    let read = |corrupt| {
        let age = Duration::from_secs(7200);
        let last_read = Some(DiskRead { age, total: Bytes(3 << 30), corrupt });
        finding(&DiskFacts { last_read, ..disk(SPACE) }, DoctorCheck::DiskRead)
    };
    assert_eq!(read(0).level, Severity::Fine);
    let damaged = read(2);
    assert_eq!(damaged.level, Severity::Warning);
    assert!(damaged.what.ends_with("was read again 2h00 ago: 2 damaged"), "{}", damaged.what);
    let silent = check_disk(&disk(SPACE));
    assert!(silent.iter().all(|found| found.check != DoctorCheck::DiskRead), "no pass has ended");
}
