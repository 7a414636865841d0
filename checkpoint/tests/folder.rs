//! A node's folder: which process may open it, and what is refused.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use zbelastic_checkpoint::files::EntryKind;
use zbelastic_checkpoint::{FolderError, LockedFolder};

const FOLDER: &str = "CHECKPOINT_TEST_FOLDER";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn a_new_folder_is_its_owners_alone() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("a/b");
    let folder = LockedFolder::open(&path).expect("it is made");
    assert!(folder.is_new());
    assert_eq!(
        (mode(&path), mode(&path.join("LOCK")), mode(&path.join("VERSION"))),
        (0o700, 0o600, 0o600)
    );
    let inner = folder.subfolder("store").expect("it is made");
    assert_eq!((inner.as_path(), mode(&inner)), (path.join("store").as_path(), 0o700));
    folder.subfolder("store").expect("it is there");
    drop(folder);
    let folder = LockedFolder::open(&path).expect("it opens again");
    assert!(!folder.is_new());
}

#[test]
fn one_process_does_not_open_it_twice() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    let folder = LockedFolder::open(&path).expect("it is made");
    match LockedFolder::open(&path) {
        Err(FolderError::InUse { owner, .. }) => assert_eq!(owner, Some(std::process::id())),
        other => panic!("it is in use, got {other:?}"),
    }
    drop(folder);
    LockedFolder::open(&path).expect("it is free again");
}

#[test]
fn process_that_holds_the_folder() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let _folder = LockedFolder::open(Path::new(&folder)).expect("it is free");
    let mut out = std::io::stdout();
    writeln!(out, "\nholds it").and_then(|()| out.flush()).expect("the pipe is open");
    // Until it is killed.
    std::io::stdin().read_line(&mut String::new()).expect("the pipe is open");
}

#[test]
fn another_process_is_named_and_its_lock_goes_with_it() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "process_that_holds_the_folder", "--nocapture"]).env(FOLDER, &path);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("text") == "holds it"));
    let error = LockedFolder::open(&path).expect_err("it is in use");
    let text = format!("{} is in use by process {}", path.display(), child.id());
    assert_eq!(error.to_string(), text);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    LockedFolder::open(&path).expect("the lock went with the process");
}

/// A line with its check.
fn stamp(text: &str) -> String {
    format!("{text} {}\n", &blake3::hash(text.as_bytes()).to_hex()[..8])
}

#[test]
fn a_newer_folder_is_left_alone() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    drop(LockedFolder::open(&path).expect("it is made"));
    let newer = stamp("zbelastic-data 2 0.9.0 0.9.4");
    fs::write(path.join("VERSION"), &newer).expect("written");
    let error = LockedFolder::open(&path).expect_err("it is newer");
    assert!(matches!(error, FolderError::Newer { .. }));
    let text = "was written by a newer version 0.9.4, needs >= 0.9.0; the data is untouched";
    assert!(error.to_string().ends_with(text), "{error}");
    assert_eq!(fs::read_to_string(path.join("VERSION")).expect("readable"), newer);
}

#[test]
fn a_version_that_is_none_is_reported() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    drop(LockedFolder::open(&path).expect("it is made"));
    let check = |text: &[u8], expected: &str| {
        fs::write(path.join("VERSION"), text).expect("written");
        match LockedFolder::open(&path) {
            Err(FolderError::BadVersion { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{expected}, got {other:?}"),
        }
    };
    check(b"", "it is empty");
    check(b"somebody-else 1\n", "it is another program's");
    check(b"zbelastic-data\n", "its number is missing");
    check(b"zbelastic-data one\n", "its number is missing");
    check(b"zbelastic-data 0 0.1.0\n", "there is no version 0");
    check(b"\xff\xfe", "it is no text");
    check(&[b' '; 1025], "it is long");
    let unchecked = "it is damaged: a folder of this version has a check behind it";
    check(b"zbelastic-data 3 0.1.0 0.1.0\n", unchecked);
    // As it was written before there were checks.
    fs::write(path.join("VERSION"), "zbelastic-data 1 0.1.0 0.1.0\n").expect("written");
    LockedFolder::open(&path).expect("ours");
}

/// Opens a folder that this process opened before. A process that another test starts has the lock of that,
/// too, until it has become another program.
fn open_again(path: &Path) -> Result<LockedFolder, FolderError> {
    const ATTEMPTS_MAX: u32 = 10_000;
    let is_inherited = |found: &Result<LockedFolder, FolderError>| match found {
        Err(FolderError::InUse { owner, .. }) => *owner == Some(std::process::id()),
        Ok(_) | Err(_) => false,
    };
    let mut found = LockedFolder::open(path);
    for _ in 0..ATTEMPTS_MAX {
        if !is_inherited(&found) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        found = LockedFolder::open(path);
    }
    found
}

/// A digit that became another one is no newer program's.
#[test]
fn a_flipped_bit_makes_no_other_version_of_a_folder() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    drop(LockedFolder::open(&path).expect("it is made"));
    let version = path.join("VERSION");
    let written = fs::read(&version).expect("readable");
    let number = written.iter().position(|byte| *byte == b'1').expect("version 1");
    for at in number..written.len() - 1 {
        for bit in 0..8 {
            let mut bytes = written.clone();
            bytes[at] ^= 1 << bit;
            fs::write(&version, &bytes).expect("written");
            match open_again(&path) {
                Err(FolderError::BadVersion { .. }) | Ok(_) => {}
                other => panic!("bit {bit} of byte {at}: {other:?}"),
            }
        }
    }
    let mut other = written.clone();
    other[number] = b'3';
    fs::write(&version, &other).expect("written");
    let error = open_again(&path).expect_err("it is damaged");
    assert!(error.to_string().contains("it is damaged: its check is another text's"), "{error}");
    fs::write(&version, &written).expect("written");
    open_again(&path).expect("ours");
}

#[test]
fn what_is_no_folder_is_told_apart() {
    let root = TempDir::new().expect("a folder");
    let check = |path: &Path, expected: EntryKind| match LockedFolder::open(path) {
        Err(FolderError::NotAFolder { found, .. }) => assert_eq!(found, expected),
        other => panic!("{expected:?}, got {other:?}"),
    };
    let file = root.path().join("file");
    fs::write(&file, "x").expect("written");
    check(&file, EntryKind::File { bytes: 1 });
    let target = root.path().join("target");
    let link = root.path().join("link");
    fs::create_dir(&target).expect("made");
    symlink(&target, &link).expect("linked");
    check(&link, EntryKind::Link);
    assert_eq!(fs::read_dir(&target).expect("readable").count(), 0);
    check(Path::new("/dev/null"), EntryKind::Special);
}

#[test]
fn a_folder_with_other_things_is_not_taken() {
    let root = TempDir::new().expect("a folder");
    fs::write(root.path().join("thesis.tex"), "x").expect("written");
    match LockedFolder::open(root.path()) {
        Err(FolderError::Foreign { found, .. }) => assert_eq!(found, "thesis.tex"),
        other => panic!("it is not ours, got {other:?}"),
    }
    assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 1, "nothing was added");
}

#[test]
fn a_crash_while_it_was_made_is_no_harm() {
    let root = TempDir::new().expect("a folder");
    for half in ["LOCK", "VERSION.new"] {
        fs::write(root.path().join(half), "").expect("written");
    }
    LockedFolder::open(root.path()).expect("it is made now");
    assert!(!root.path().join("VERSION.new").exists());
}

#[test]
fn a_lock_that_is_a_link_is_refused() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    let target = root.path().join("target");
    drop(LockedFolder::open(&path).expect("it is made"));
    fs::remove_file(path.join("LOCK")).expect("removed");
    fs::write(&target, "precious").expect("written");
    symlink(&target, path.join("LOCK")).expect("linked");
    assert!(matches!(LockedFolder::open(&path), Err(FolderError::File(_))));
    assert_eq!(fs::read_to_string(target).expect("readable"), "precious");
}

#[test]
fn rights_that_are_missing_are_told_apart() {
    let root = TempDir::new().expect("a folder");
    let path = root.path().join("data");
    drop(LockedFolder::open(&path).expect("it is made"));
    let open = |mode| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        let result = LockedFolder::open(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("ours");
        result
    };
    if open(0).is_ok() {
        println!("skipped: this user may read everything");
        return;
    }
    assert!(matches!(open(0), Err(FolderError::Unreadable { .. })));
    fs::remove_file(path.join("LOCK")).expect("removed");
    assert!(matches!(open(0o500), Err(FolderError::Unwritable { .. })));
}
