//! Damage to the files that a member keeps of checkpoints and texts, while its process is down: a
//! bit that flips, or an end that is lost.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use chaos_tests::random::{DrawPurpose, Draws};

/// Folders with what a node keeps for the cluster. Its log is none of them: a controller whose log
/// is damaged does not start, which `docs/security.md` promises.
const KEPT: [&str; 2] = ["store", "data"];
/// Files that say of which form a folder is, and which process holds it: they hold nothing that
/// others have.
const NOT_KEPT: [&str; 2] = ["LOCK", "VERSION"];

/// Damages one file below a member's folder, as the draw says. Yields which, if there is one.
///
/// # Errors
/// If the files cannot be read or written.
pub fn damage(folder: &Path, draw: u64) -> io::Result<Option<PathBuf>> {
    let mut files = Vec::new();
    for kept in KEPT {
        collect_files(&folder.join(kept), &mut files)?;
    }
    files.sort();
    let mut draws = Draws::new(draw, DrawPurpose::Disk);
    if files.is_empty() {
        return Ok(None);
    }
    let (path, length) = files.swap_remove(draws.below(files.len() as u64) as usize);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let at = draws.below(length);
    if draws.chance(0.3) {
        file.set_len(at)?;
    } else {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << draws.below(8);
        file.write_all_at(&byte, at)?;
    }
    Ok(Some(path))
}

/// Files with bytes in them, with their lengths, however deep.
fn collect_files(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let found = entry.metadata()?;
        let is_kept = NOT_KEPT.iter().all(|name| entry.file_name() != *name);
        if found.is_dir() {
            collect_files(&entry.path(), files)?;
        } else if found.is_file() && found.len() > 0 && is_kept {
            files.push((entry.path(), found.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_of_what_is_kept_is_damaged_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(damage(root, 1).expect("readable"), None, "there is nothing");
        let bytes: Vec<u8> = (0..200).collect();
        let names = ["store/chunks/ab/x", "store/index/db", "store/LOCK", "data/y.data", "log/db"];
        let write = || {
            for name in names {
                let path = root.join(name);
                fs::create_dir_all(path.parent().expect("it has one")).expect("room");
                fs::write(path, &bytes).expect("room");
            }
        };
        let mut damaged = std::collections::BTreeSet::new();
        for draw in 0..40 {
            write();
            let path = damage(root, draw).expect("readable").expect("there are files");
            let changed: Vec<_> = names
                .iter()
                .map(|name| root.join(name))
                .filter(|path| fs::read(path).expect("readable") != bytes)
                .collect();
            assert_eq!(changed, std::slice::from_ref(&path));
            damaged.insert(path);
        }
        let expected = ["data/y.data", "store/chunks/ab/x", "store/index/db"];
        assert_eq!(damaged.into_iter().collect::<Vec<_>>(), expected.map(|name| root.join(name)));
    }
}
