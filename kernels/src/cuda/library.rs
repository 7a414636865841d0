//! Whether NVIDIA's libraries are there. cudarc panics at its first call into one that is not, so
//! each is looked up here first.
//!
//! [`FOLDERS_VARIABLE`] may name folders to look in, as the packages at PyPI lay them out. A
//! library found there is loaded by its path; the loader then knows it by its name, and a later
//! load by that name gets it.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{Library, LibraryError};

/// Folders with NVIDIA's libraries, separated as in PATH.
pub const FOLDERS_VARIABLE: &str = "ZBELASTIC_CUDA_LIBS";

/// Looks for a library and loads it if it is there.
///
/// # Errors
/// If it is nowhere, or if the file in a named folder does not load.
pub fn require(library: Library) -> Result<(), LibraryError> {
    let folders = std::env::var_os(FOLDERS_VARIABLE).unwrap_or_default();
    require_in(library, &folders)
}

fn require_in(library: Library, folders: &OsStr) -> Result<(), LibraryError> {
    for folder in std::env::split_paths(folders) {
        for path in library.files().iter().filter_map(|file| file_in(&folder, file)) {
            load(&path).map_err(|reason| LibraryError::Refused { path, reason })?;
        }
    }
    if is_present(library) {
        return Ok(());
    }
    Err(match library {
        Library::Driver => LibraryError::DriverMissing,
        Library::Nccl => LibraryError::NcclMissing,
        Library::Nvrtc | Library::CublasLt => LibraryError::Missing { library },
    })
}

/// A library's file in a folder, whatever its version; the last in alphabetical order.
fn file_in(folder: &Path, file: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let version = name.strip_prefix(file);
        version.is_some_and(|rest| rest.chars().all(|c| c == '.' || c.is_ascii_digit()))
    };
    paths.filter(is_it).max()
}

fn is_present(library: Library) -> bool {
    // SAFETY: these load a library and drop it again; its initialisers are NVIDIA's.
    unsafe {
        match library {
            Library::Driver => cudarc::driver::sys::is_culib_present(),
            Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
            Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            Library::Nccl => cudarc::nccl::sys::is_culib_present(),
        }
    }
}

unsafe extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Load what is needed when it is called, and offer symbols to no other library.
const RTLD_LAZY: c_int = 1;

/// Loads a library for as long as the process lives.
fn load(path: &Path) -> Result<(), String> {
    let file = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the name is a C string; dlerror's answer is read before the next call.
    unsafe {
        if !dlopen(file.as_ptr(), RTLD_LAZY).is_null() {
            return Ok(());
        }
        let reason = dlerror();
        if reason.is_null() {
            return Err("no reason given".to_owned());
        }
        Err(CStr::from_ptr(reason).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{file_in, require_in};
    use crate::cuda::error::{Library, LibraryError};
    use std::path::{Path, PathBuf};

    /// A folder of this test's own, with empty files of these names.
    fn folder(name: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("zbelastic-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        files.iter().for_each(|file| std::fs::write(folder.join(file), "").expect("a file"));
        folder
    }

    #[test]
    fn a_file_is_found_by_its_name_whatever_its_version() {
        let files = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.alt.so.13", "libnvrtc.so.txt"];
        let folder = folder("library", &files);
        assert_eq!(file_in(&folder, "libnvrtc.so"), Some(folder.join("libnvrtc.so.13")));
        assert_eq!(file_in(&folder, "libcublasLt.so"), None);
        assert_eq!(file_in(Path::new("/nowhere/at/all"), "libnvrtc.so"), None);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_by_name() {
        let folder = folder("refused", &["libnvrtc.so.13"]);
        let error = require_in(Library::Nvrtc, folder.as_os_str()).expect_err("an empty file");
        let LibraryError::Refused { path, reason } = error else { panic!("{error}") };
        assert_eq!(path, folder.join("libnvrtc.so.13"));
        assert!(reason.contains("file too short"), "{reason}");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
