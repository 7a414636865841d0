//! The second store on a disk: stashes of passes lie in files while they are offloaded.
//!
//! One file a pass, in a folder of this store's own that nothing else reads. The bytes are those of
//! the floats, little end first. Files that a killed process left are removed before the first file
//! is written, and the folder goes with the store. Nothing here is kept beyond a run, so nothing is
//! synced.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_schedule::Pass;
use zbelastic_trainer::elastic::StashStoreFactory;
use zbelastic_trainer::stage::{ByteBudget, StashStore, StashStoreError};
use zbelastic_types::Bytes;

/// Name of the folder of second stores, in that of a run or a node.
pub const SECOND_STORE: &str = "second-store";

/// A second store in a folder.
#[derive(Debug)]
pub struct FileSecondStore {
    folder: PathBuf,
    /// Whether the folder is there and is ours.
    is_open: bool,
    budget: ByteBudget,
    /// Bytes of each pass that is offloaded.
    held: BTreeMap<Pass, Bytes>,
}

/// Makes second stores in files below `scratch`, each in a folder of its own: while a plan is loaded
/// there may be two.
#[must_use]
pub fn file_stores(scratch: PathBuf) -> StashStoreFactory {
    // The folder of a process that was killed. If it cannot be removed, that is reported when
    // something is written.
    drop(fs::remove_dir_all(&scratch));
    let made = AtomicU64::new(0);
    Box::new(move |bytes| {
        let number = made.fetch_add(1, Ordering::Relaxed);
        Box::new(FileSecondStore::new(scratch.join(number.to_string()), bytes))
    })
}

impl FileSecondStore {
    /// An empty one for so many bytes at most, in a folder that is made when something is put
    /// there.
    #[must_use]
    pub const fn new(folder: PathBuf, limit: Bytes) -> Self {
        Self { folder, is_open: false, budget: ByteBudget::new(limit), held: BTreeMap::new() }
    }

    fn path(&self, pass: Pass) -> PathBuf {
        self.folder.join(format!("{}-{}", pass.chunk, pass.microbatch))
    }

    fn open(&mut self) -> io::Result<()> {
        if !self.is_open {
            match fs::remove_dir_all(&self.folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            fs::create_dir_all(&self.folder)?;
            self.is_open = true;
        }
        Ok(())
    }

    fn write(&mut self, pass: Pass, floats: &[f32]) -> io::Result<()> {
        self.open()?;
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        fs::write(self.path(pass), bytes)
    }

    fn read(&self, pass: Pass, expected: Bytes) -> io::Result<Vec<f32>> {
        let bytes = fs::read(self.path(pass))?;
        if bytes.len() as u64 != expected.0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (floats, _) = bytes.as_chunks::<4>();
        Ok(floats.iter().map(|float| f32::from_le_bytes(*float)).collect())
    }
}

impl StashStore for FileSecondStore {
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StashStoreError> {
        let bytes = Bytes::of_f32(floats.len());
        self.budget.reserve(bytes)?;
        if let Err(error) = self.write(pass, floats) {
            self.budget.release(bytes);
            // A partial file would be in the way of the next pass.
            drop(fs::remove_file(self.path(pass)));
            return Err(StashStoreError::Write { kind: error.kind() });
        }
        let before = self.held.insert(pass, bytes);
        assert!(before.is_none(), "a pass leaves once");
        Ok(())
    }

    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StashStoreError> {
        let bytes = self.held.get(&pass).copied().ok_or(StashStoreError::Missing { pass })?;
        let floats =
            self.read(pass, bytes).map_err(|error| StashStoreError::Read { kind: error.kind() })?;
        self.held.remove(&pass);
        self.budget.release(bytes);
        // A file that stays is overwritten by the same pass of the next step.
        drop(fs::remove_file(self.path(pass)));
        Ok(floats)
    }

    fn clear(&mut self) {
        for pass in std::mem::take(&mut self.held).into_keys() {
            drop(fs::remove_file(self.path(pass)));
        }
        self.budget.clear();
    }
}

impl Drop for FileSecondStore {
    fn drop(&mut self) {
        if self.is_open {
            drop(fs::remove_dir_all(&self.folder));
            // The last one removes the folder of them all with it; a folder with others in it
            // stays.
            drop(self.folder.parent().map(fs::remove_dir));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use zbelastic_schedule::Pass;
    use zbelastic_trainer::stage::{StashStore, StashStoreError};
    use zbelastic_types::Bytes;

    use super::{FileSecondStore, SECOND_STORE};

    const FIRST: Pass = Pass::new(3, 0);
    const SECOND: Pass = Pass::new(3, 1);

    #[test]
    fn what_leaves_comes_back_to_the_bit_and_leaves_no_file() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join(SECOND_STORE).join("stage-0");
        fs::create_dir_all(&folder).expect("room");
        fs::write(folder.join("9-9"), "of a process that was killed").expect("room");
        let mut store = FileSecondStore::new(folder.clone(), Bytes::of_f32(3));
        let floats = [f32::NAN, -0.0, 1e-40];
        assert_eq!(store.put(FIRST, &floats), Ok(()));
        assert!(!folder.join("9-9").exists());
        let full = StashStoreError::Full { needed: Bytes(16), limit: Bytes(12) };
        assert_eq!(store.put(SECOND, &[1.0]), Err(full));
        let found = store.take(FIRST).expect("it left");
        assert!(found.iter().zip(&floats).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(store.take(FIRST), Err(StashStoreError::Missing { pass: FIRST }));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
        assert_eq!(store.put(SECOND, &[1.0, 2.0]), Ok(()));
        store.clear();
        assert_eq!(store.take(SECOND), Err(StashStoreError::Missing { pass: SECOND }));
        let beside = root.path().join(SECOND_STORE).join("stage-1");
        let mut other = FileSecondStore::new(beside.clone(), Bytes::of_f32(1));
        other.put(FIRST, &[1.0]).expect("room");
        drop(store);
        assert!(!folder.exists() && beside.exists());
        drop(other);
        assert!(!root.path().join(SECOND_STORE).exists());
    }

    #[test]
    fn a_medium_that_fails_is_reported_and_takes_no_space() {
        let root = tempfile::tempdir().expect("a folder");
        let blocked = root.path().join("file");
        fs::write(&blocked, "no folder").expect("room");
        let mut store = FileSecondStore::new(blocked.join("stage-0"), Bytes::of_f32(1));
        let kind = ErrorKind::NotADirectory;
        assert_eq!(store.put(FIRST, &[1.0]), Err(StashStoreError::Write { kind }));
        assert_eq!(
            store.put(FIRST, &[1.0]),
            Err(StashStoreError::Write { kind }),
            "and no room taken"
        );

        let folder = root.path().join(SECOND_STORE).join("stage-1");
        let mut store = FileSecondStore::new(folder.clone(), Bytes::of_f32(2));
        store.put(FIRST, &[1.0, 2.0]).expect("room");
        fs::write(folder.join("3-0"), "cut").expect("room");
        let cut = StashStoreError::Read { kind: ErrorKind::UnexpectedEof };
        assert_eq!(store.take(FIRST), Err(cut));
    }
}
