//! The kernels as shared libraries of this machine, by its C++ compiler.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use zbelastic_kernels::cuda::kernel::Kernel;
use zbelastic_kernels::cuda::source::{File, PRELUDE, Precision};

/// How a library's function for a kernel is called: grid, threads, whether backwards, arguments.
pub type Entry = unsafe extern "C" fn(*const u32, u32, bool, *mut *mut c_void);

unsafe extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Symbols at once, and offered to nobody else.
const RTLD_NOW: c_int = 2;

fn entry_name(kernel: Kernel) -> String {
    format!("emulated_{}", kernel.name())
}

fn kernels(file: File) -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(move |kernel| kernel.file() == file)
}

/// The whole program: what stands for the device, the source, and an entry a kernel.
fn program(file: File) -> String {
    let tensor_cores = if file == File::Flash { include_str!("tensor_cores.h") } else { "" };
    let mut text = format!(
        "{}\n{PRELUDE}\n{tensor_cores}\n#line 1 \"{}\"\n{}\n",
        include_str!("shim.h"),
        file.name(),
        file.text()
    );
    for kernel in kernels(file) {
        writeln!(
            text,
            "extern \"C\" void {}(const unsigned *grid, unsigned threads, bool reversed, \
             void **arguments) {{ emulator::launch({}, grid, threads, reversed, arguments); }}",
            entry_name(kernel),
            kernel.name()
        )
        .expect("a string grows");
    }
    text
}

/// Compiles one file, unless that was done before with the same text. `None` without a compiler.
fn library(file: File, precision: Precision) -> Option<PathBuf> {
    let stem = format!("{}-{precision:?}-{}", file.name(), std::process::id());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join(format!("{stem}.cpp"));
    let library = folder.join(format!("{stem}.so"));
    fs::write(&source, program(file)).expect("the folder for tests is there");
    let mut compiler = Command::new("c++");
    compiler.args([
        "-std=c++17",
        "-O2",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        "-Wall",
    ]);
    compiler.args(["-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]);
    compiler.args(["-Werror", precision.option()]);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("fma") {
        compiler.arg("-mfma");
    }
    let output = compiler.arg(&source).arg("-o").arg(&library).output().ok()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{words}", file.name());
    fs::remove_file(source).expect("it was written");
    Some(library)
}

fn load(library: &PathBuf) -> *mut c_void {
    let name = CString::new(library.to_str().expect("a plain path")).expect("no zero bytes");
    // SAFETY: a C string; the library was just made, and has no initialisers of its own.
    let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: after a failure there is a string.
        let reason = unsafe { CStr::from_ptr(dlerror()) };
        panic!("{}: {}", library.display(), reason.to_string_lossy());
    }
    fs::remove_file(library).expect("the library is loaded");
    handle
}

/// The entries of all kernels of a precision, or nothing without a C++ compiler.
pub fn entries(precision: Precision) -> Option<Vec<(Kernel, Entry)>> {
    let mut entries = Vec::new();
    for file in File::ALL.into_iter().filter(|file| file.is_for(precision)) {
        let handle = load(&library(file, precision)?);
        for kernel in kernels(file) {
            let name = CString::new(entry_name(kernel)).expect("no zero bytes");
            // SAFETY: an open library and a C string.
            let symbol = unsafe { dlsym(handle, name.as_ptr()) };
            assert!(!symbol.is_null(), "{kernel:?} has an entry");
            // SAFETY: the entry was written with this type in `program`.
            entries.push((kernel, unsafe { std::mem::transmute::<*mut c_void, Entry>(symbol) }));
        }
    }
    Some(entries)
}
