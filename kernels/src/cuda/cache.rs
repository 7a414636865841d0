//! Compiled kernels on disk.
//!
//! A file holds the key in full (source, options, versions), so that no two keys are taken for one,
//! and a checksum of the code, so that a torn file is not loaded. Files are written beside and
//! renamed; the oldest go when there are more than [`FILES_MAX`]. A cache that cannot be written
//! costs time at each start and nothing else: that is a warning, once, and the process keeps the
//! code for the next devices that it opens.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use zbelastic_whole_file as whole_file;

use super::compiler::Compiler;
use super::error::{CacheWarning, CompileError, CudaVersion};
use super::source::CompilationUnit;

/// The folder for compiled kernels, if not the user's own folder for caches.
pub const FOLDER_VARIABLE: &str = "ZBELASTIC_KERNEL_CACHE";

/// Files kept: two precisions of eight sources for some architectures and versions.
pub const FILES_MAX: usize = 256;

const EXTENSION: &str = "cubin";
const MAGIC: &[u8; 8] = b"zbcubin1";

/// Code of this process that is not on disk, by where it would be; as much as there is to compile.
/// Held while something is compiled, so that several workers that begin at once compile it once.
static UNKEPT: Mutex<BTreeMap<PathBuf, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// The folder where compiled kernels are kept.
#[derive(Clone, Debug)]
pub struct KernelCache {
    folder: PathBuf,
}

/// Compiled code, and why it could not be kept on disk.
#[derive(Debug)]
pub struct CompiledCode {
    /// Machine code for the device.
    pub code: Vec<u8>,
    /// Whether it was read from disk.
    pub is_from_disk: bool,
    /// Why the code is not on disk now.
    pub warning: Option<CacheWarning>,
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Everything that the code depends on.
fn key(unit: &CompilationUnit, source: &str, compiler: CudaVersion) -> Vec<u8> {
    let mut key = format!("{} NVRTC {compiler}", unit.file.name());
    for option in unit.options() {
        key.push('\n');
        key.push_str(&option);
    }
    key.push('\n');
    key.push_str(source);
    key.into_bytes()
}

impl KernelCache {
    /// A cache in this folder.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// A cache in the folder that [`FOLDER_VARIABLE`] names, or `zbelastic/kernels` in the user's
    /// folder for caches, or in the system's for temporary files.
    #[must_use]
    pub fn of_environment() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let named = variable(FOLDER_VARIABLE).map(PathBuf::from);
        let user = || {
            let own = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
            own.or_else(home).unwrap_or_else(std::env::temp_dir).join("zbelastic/kernels")
        };
        Self::new(named.unwrap_or_else(user))
    }

    fn path(&self, key: &[u8]) -> PathBuf {
        let name = format!("{:016x}{:016x}.{EXTENSION}", hash(0, key), hash(1, key));
        self.folder.join(name)
    }

    /// The code of a unit, from disk or from the compiler.
    ///
    /// # Errors
    /// If the compiler refuses the source.
    pub fn get(
        &self,
        compiler: &Compiler,
        unit: &CompilationUnit,
    ) -> Result<CompiledCode, CompileError> {
        let key = key(unit, &unit.file.source(), compiler.version());
        let mut unkept = UNKEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = self.read(&key) {
            return Ok(CompiledCode { code, is_from_disk: true, warning: None });
        }
        let path = self.path(&key);
        if let Some(code) = unkept.get(&path) {
            return Ok(CompiledCode { code: code.clone(), is_from_disk: false, warning: None });
        }
        let code = compiler.compile(unit)?;
        let warning = self.write(&key, &code).err();
        if warning.is_some() {
            unkept.insert(path, code.clone());
        }
        Ok(CompiledCode { code, is_from_disk: false, warning })
    }

    /// What is on disk for a key, if it is whole.
    fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(key)).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let found_key = rest.get(..len)?;
        let (sum, code) = rest.get(len..)?.split_first_chunk::<8>()?;
        let is_whole = found_key == key && u64::from_le_bytes(*sum) == hash(0, code);
        is_whole.then(|| code.to_vec())
    }

    fn write(&self, key: &[u8], code: &[u8]) -> Result<(), CacheWarning> {
        let path = self.path(key);
        let warn = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| CacheWarning { path, reason: error.to_string() }
        };
        fs::create_dir_all(&self.folder).map_err(warn(&self.folder))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key);
        bytes.extend(hash(0, code).to_le_bytes());
        bytes.extend(code);
        whole_file::write_to_cache(&path, &bytes).map_err(warn(&path))?;
        self.drop_oldest();
        Ok(())
    }

    /// Removes the oldest files beyond [`FILES_MAX`]. What cannot be removed stays: another process
    /// may have done it.
    fn drop_oldest(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let path = entry.path();
                let is_ours = path.extension().is_some_and(|found| found == EXTENSION);
                let modified = entry.metadata().ok()?.modified().ok()?;
                is_ours.then_some((modified, path))
            })
            .collect();
        files.sort();
        for (_, path) in files.iter().take(files.len().saturating_sub(FILES_MAX)) {
            let _may_be_gone = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES_MAX, KernelCache, key};
    use crate::cuda::source::{CompilationUnit, KernelFile, Precision};
    use crate::cuda::{Architecture, CudaVersion};
    use std::path::PathBuf;

    const VERSION: CudaVersion = CudaVersion { major: 13, minor: 0 };

    fn unit() -> CompilationUnit {
        let architecture = Architecture::new(9, 0);
        CompilationUnit { file: KernelFile::Norm, precision: Precision::F32, architecture }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("zbelastic-{name}-{}", std::process::id()));
        let _may_not_be_there = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn whatever_the_code_depends_on_is_in_the_key() {
        let base = key(&unit(), "source", VERSION);
        let other_unit = |change: fn(&mut CompilationUnit)| {
            let mut unit = unit();
            change(&mut unit);
            key(&unit, "source", VERSION)
        };
        let others = [
            key(&unit(), "source ", VERSION),
            key(&unit(), "source", CudaVersion { major: 13, minor: 1 }),
            other_unit(|unit| unit.precision = Precision::Bf16),
            other_unit(|unit| unit.architecture = Architecture::new(8, 0)),
            other_unit(|unit| unit.file = KernelFile::Head),
        ];
        assert!(others.iter().all(|other| *other != base));
    }

    #[test]
    fn code_comes_back_whole_or_not_at_all() {
        let cache = KernelCache::new(folder("cache"));
        let first = b"first".as_slice();
        let second = b"second".as_slice();
        assert_eq!(cache.read(first), None);
        cache.write(first, b"code").expect("a temporary folder");
        assert_eq!(cache.read(first).as_deref(), Some(b"code".as_slice()));
        assert_eq!(cache.read(second), None);
        let bytes = std::fs::read(cache.path(first)).expect("written");
        std::fs::copy(cache.path(first), cache.path(second)).expect("copied");
        assert_eq!(cache.read(second), None, "another key's code under this key's name");
        for len in 0..bytes.len() {
            std::fs::write(cache.path(first), &bytes[..len]).expect("written");
            assert_eq!(cache.read(first), None, "torn after {len} bytes");
        }
        std::fs::remove_dir_all(&cache.folder).expect("removed");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_a_warning() {
        let file = folder("no-folder");
        std::fs::write(&file, "").expect("a file where the folder should be");
        let warning = KernelCache::new(file.clone()).write(b"key", b"code").expect_err("no folder");
        assert_eq!(warning.path, file);
        assert!(warning.to_string().contains("ZBELASTIC_KERNEL_CACHE"));
        std::fs::remove_file(file).expect("removed");
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let cache = KernelCache::new(folder("bounded"));
        for index in 0..FILES_MAX + 3 {
            cache.write(&index.to_le_bytes(), b"code").expect("a temporary folder");
        }
        assert_eq!(std::fs::read_dir(&cache.folder).expect("there").count(), FILES_MAX);
        std::fs::remove_dir_all(&cache.folder).expect("removed");
    }
}
