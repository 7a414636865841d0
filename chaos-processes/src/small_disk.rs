//! Small disks in memory, which can be full in earnest. They need the right to mount.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;

use super::system::own_mounts;

/// A folder that is a disk of so many MiB, for this thread and the processes that it starts.
/// [`own_mounts`] comes first, so that the disk goes with them.
///
/// # Errors
/// If the system does not allow it.
pub fn mount(folder: &Path, mib: u32) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]).arg(folder);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::new(io::ErrorKind::PermissionDenied, stderr.trim().to_owned()))
}

/// Whether this machine allows it. A thread tries, and its mount goes with it.
#[must_use]
pub fn is_possible() -> bool {
    let tried = thread::spawn(|| {
        let folder = zbelastic_whole_file::TemporaryFolder::temporary("mount-probe")?;
        own_mounts()?;
        mount(folder.path(), 1)?;
        let unmounted = Command::new("umount").arg(folder.path()).status()?;
        if unmounted.success() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Other)) }
    });
    matches!(tried.join(), Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::{is_possible, mount};
    use crate::system::own_mounts;

    #[test]
    fn a_small_disk_is_full_and_only_seen_by_its_thread() {
        if !is_possible() {
            println!("skipped: this machine does not let us mount");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let inner = file.clone();
        let path = folder.path().to_owned();
        let tried = std::thread::spawn(move || -> io::Result<()> {
            own_mounts()?;
            mount(&path, 1)?;
            std::fs::write(&inner, vec![0; 1 << 19])?;
            std::fs::write(&inner, vec![0; 2 << 20])
        });
        let error = tried.join().expect("no panic").expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(!file.exists());
    }
}
