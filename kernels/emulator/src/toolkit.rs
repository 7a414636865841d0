//! The three libraries in a folder, and how a program is told to load them.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::settings::{Settings, VARIABLE};

/// The file that cargo makes of this package, beside the tests that use it.
const LIBRARY: &str = "libzbelastic_emulator.so";

/// A library that a machine may have or lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `libcuda`.
    Driver,
    /// `libnvrtc`.
    Compiler,
    /// `libcublasLt`.
    Products,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Driver, Self::Compiler, Self::Products];

    const fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Compiler => "libnvrtc.so.13",
            Self::Products => "libcublasLt.so.13",
        }
    }
}

/// A folder with some of the libraries, and one for the kernels that are compiled by them.
pub struct Toolkit {
    libraries: PathBuf,
    kernels: PathBuf,
}

/// Where cargo put the shared library: beside the program that runs, or a folder above.
fn library() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folders = program.ancestors().skip(1).take(2);
    let mut found =
        folders.flat_map(|folder| [folder.join(LIBRARY), folder.join("deps").join(LIBRARY)]);
    let missing = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{LIBRARY} is not beside {}", program.display()),
        )
    };
    found.find(|path| path.exists()).ok_or_else(missing)
}

impl Toolkit {
    /// Lays these libraries into `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// If the shared library is not where cargo puts it, or the folder cannot be written.
    pub fn new(folder: &Path, parts: &[Part]) -> io::Result<Self> {
        let (libraries, kernels) = (folder.join("lib"), folder.join("kernels"));
        fs::create_dir_all(&libraries)?;
        let library = library()?;
        for part in parts {
            let link = libraries.join(part.file());
            match symlink(&library, &link) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(Self { libraries, kernels })
    }

    /// What a program's environment has to say for it to run on such a machine.
    #[must_use]
    pub fn variables(&self, settings: Settings) -> Vec<(&'static str, String)> {
        let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
        vec![
            ("LD_LIBRARY_PATH", path(&self.libraries)),
            ("ZBELASTIC_CUDA_LIBS", String::new()),
            ("ZBELASTIC_KERNEL_CACHE", path(&self.kernels)),
            (VARIABLE, settings.text()),
        ]
    }

    /// Has a program run on such a machine.
    pub fn equip(&self, program: &mut Command, settings: Settings) {
        program.envs(self.variables(settings));
    }

    /// Runs the program of this test again on such a machine, with these arguments.
    ///
    /// # Panics
    /// If a test of it fails, or says that it was skipped.
    pub fn run_again(&self, arguments: &[&str], settings: Settings) {
        let mut program = Command::new(env::current_exe().expect("a program that runs"));
        self.equip(program.args(arguments).arg("--nocapture"), settings);
        let output = program.output().expect("this program again");
        let words = String::from_utf8_lossy(&output.stdout);
        println!("{words}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "on {}", settings.text());
        assert!(!words.contains("skipped"), "on {}", settings.text());
        assert!(!words.contains("running 0 tests"), "{arguments:?} names a test");
    }
}
