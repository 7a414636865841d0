//! The libraries in a folder, and the environment that has a program load them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs, io, thread};

use crate::code::compiler_options;
use crate::settings::{BEGINS, EmulatorSettings, REPORT_VARIABLE, VARIABLE};

/// The file that cargo makes of this package, beside the tests that use it.
const LIBRARY: &str = "libzbelastic_emulator.so";

/// A library that a machine may have or lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatedLibrary {
    /// The library of the driver, `libcuda`.
    Driver,
    /// The compiler of kernels, `libnvrtc`.
    Compiler,
    /// The library of products, `libcublasLt`.
    Products,
    /// The library of exchanges between devices, `libnccl`.
    Communicators,
}

impl EmulatedLibrary {
    /// All libraries, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Compiler, Self::Products, Self::Communicators];

    /// The names that a program may look for it by. All are there, so that none is found elsewhere.
    const fn files(self) -> [&'static str; 2] {
        match self {
            Self::Driver => ["libcuda.so", "libcuda.so.1"],
            Self::Compiler => ["libnvrtc.so", "libnvrtc.so.13"],
            Self::Products => ["libcublasLt.so", "libcublasLt.so.13"],
            Self::Communicators => ["libnccl.so", "libnccl.so.2"],
        }
    }
}

/// A folder with some of the libraries, and one for the kernels that are compiled by them.
pub struct EmulatedToolkit {
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

/// A link to where the library is now, whatever was there before.
fn link(library: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(to).is_ok_and(|found| found == library) {
        return Ok(());
    }
    let fresh = to.with_extension(format!("{}-{:?}", process::id(), thread::current().id()));
    symlink(library, &fresh)?;
    fs::rename(&fresh, to)
}

impl EmulatedToolkit {
    /// Whether kernels can be compiled for such a machine here; prints a line if not.
    ///
    /// # Panics
    /// If they cannot although `ZBELASTIC_TOOLS_REQUIRED` is set.
    #[must_use]
    pub fn is_possible() -> bool {
        let has_compiler = Command::new("c++").arg("--version").output().is_ok();
        let is_possible = cfg!(target_arch = "x86_64") && has_compiler;
        if !is_possible {
            assert!(env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_none(), "there is no c++");
            println!("skipped: kernels run on x86-64 processors where there is a c++");
        }
        is_possible
    }

    /// Links these libraries into `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// If the shared library is not where cargo puts it, or the folder cannot be written.
    pub fn new(folder: &Path, parts: &[EmulatedLibrary]) -> io::Result<Self> {
        let libraries = folder.join("lib");
        fs::create_dir_all(&libraries)?;
        let library = library()?;
        for file in parts.iter().flat_map(|part| part.files()) {
            link(&library, &libraries.join(file))?;
        }
        // What code is made of belongs to the library: another one has a folder of its own.
        let mut made_by = DefaultHasher::new();
        fs::read(&library)?.hash(&mut made_by);
        compiler_options().hash(&mut made_by);
        let kernels = folder.join(format!("kernels-{:016x}", made_by.finish()));
        Ok(Self { libraries, kernels })
    }

    /// The variables of the environment with which a program runs on such a machine.
    #[must_use]
    pub fn variables(&self, settings: EmulatorSettings) -> Vec<(&'static str, String)> {
        let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
        vec![
            ("LD_LIBRARY_PATH", path(&self.libraries)),
            ("ZBELASTIC_CUDA_LIBS", String::new()),
            ("ZBELASTIC_KERNEL_CACHE", path(&self.kernels)),
            (VARIABLE, settings.text()),
        ]
    }

    /// Has a program run on such a machine.
    pub fn equip(&self, program: &mut Command, settings: EmulatorSettings) {
        program.envs(self.variables(settings));
    }

    /// Runs the program of this test again on such a machine, with these arguments.
    ///
    /// # Panics
    /// If a test of it fails, or prints that it was skipped.
    pub fn run_again(&self, arguments: &[&str], settings: EmulatorSettings) {
        let mut program = Command::new(env::current_exe().expect("a program that runs"));
        self.equip(program.args(arguments).arg("--nocapture"), settings);
        let output = program.env(REPORT_VARIABLE, "1").output().expect("this program again");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        println!("{stdout}{stderr}");
        assert!(stderr.contains(BEGINS), "another driver was found first");
        assert!(output.status.success(), "on {}", settings.text());
        assert!(!stdout.contains("skipped"), "on {}", settings.text());
        assert!(!stdout.contains("running 0 tests"), "{arguments:?} names a test");
    }
}
