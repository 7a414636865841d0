//! Kernels as code of this machine: a shared library a source, with an entry a kernel.

use std::env;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::Library;

/// A kernel's function: grid, threads, bytes of shared memory, whether backwards, arguments. False
/// if it wrote behind its shared memory.
pub type KernelEntry = unsafe extern "C" fn(*const u32, u32, u32, bool, *mut *mut c_void) -> bool;

/// The sizes of a kernel's arguments: writes as many sizes as the list holds, and returns how many
/// there are.
type ArgumentSizesFunction = unsafe extern "C" fn(*mut usize, usize) -> usize;

/// The most threads a block may have.
type ThreadsMaxFunction = unsafe extern "C" fn() -> u32;

const SHIM: &str = include_str!("../cu/shim.h");
const TENSOR_CORES: &str = include_str!("../cu/tensor_cores.h");

/// The mark that a source's own text begins with, behind the prelude.
const SECOND_PART: &str = "\n#line 1 \"";

/// The mark in a source around that part of it that only a device's tensor cores can do.
const TENSOR_CORES_MARK: &str = "#ifndef EMULATED";

/// Arguments of a kernel at most.
const ARGUMENTS_MAX: usize = 64;

/// A kernel as its source declares it.
#[derive(Debug, PartialEq, Eq)]
struct KernelDeclaration<'a> {
    name: &'a str,
    /// The first word of its launch bounds.
    threads_max: Option<&'a str>,
}

fn declared(source: &str) -> Vec<KernelDeclaration<'_>> {
    let mut found = Vec::new();
    for (at, _) in source.match_indices("KERNEL ") {
        let starts_line = at == 0 || source[..at].ends_with('\n');
        if !starts_line {
            continue;
        }
        let mut rest = source[at + "KERNEL ".len()..].trim_start();
        let mut threads_max = None;
        if let Some(bounds) = rest.strip_prefix("__launch_bounds__(") {
            let (inside, behind) = bounds.split_once(')').expect("bounds are closed");
            threads_max = inside.split(',').next();
            rest = behind.trim_start();
        }
        let name = rest.split('(').next().expect("a name and what it takes").trim();
        found.push(KernelDeclaration { name, threads_max });
    }
    found
}

/// The whole program: the code that emulates the device, the source, and the functions called from
/// outside.
fn program(source: &str) -> String {
    let own = source[1..].find(SECOND_PART).map_or(source.len(), |at| at + 1);
    let (prelude, text) = source.split_at(own);
    let tensor_cores = if text.contains(TENSOR_CORES_MARK) { TENSOR_CORES } else { "" };
    let mut program = format!("{SHIM}\n{prelude}\n{tensor_cores}{text}\n");
    for KernelDeclaration { name, threads_max } in declared(text) {
        let threads_max = threads_max.unwrap_or("emulator::THREADS_MAX");
        writeln!(
            program,
            "extern \"C\" bool emulated_{name}(const unsigned *grid, unsigned threads, unsigned shared, \
             bool reversed, void **arguments) \
             {{ return emulator::launch({name}, grid, threads, shared, reversed, arguments); }}\n\
             extern \"C\" size_t emulated_sizes_{name}(size_t *to, size_t capacity) \
             {{ return emulator::sizes({name}, to, capacity); }}\n\
             extern \"C\" unsigned emulated_bound_{name}() {{ return {threads_max}; }}"
        )
        .expect("a string grows");
    }
    program
}

/// A path of this process's own.
fn fresh_path(extension: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    env::temp_dir().join(format!("zbelastic-emulated-{}-{number}.{extension}", process::id()))
}

/// The compiler's options for every source.
pub(crate) fn compiler_options() -> Vec<&'static str> {
    let mut options = vec!["-std=c++17", "-O2", "-fno-strict-aliasing", "-ffp-contract=off"];
    options.extend(["-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unknown-pragmas"]);
    options.extend(["-Wno-unused-function", "-Wno-unused-variable"]);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("fma") {
        options.push("-mfma");
    }
    options
}

/// Where code is kept for the other test programs that cargo puts beside this one, which compile the same
/// sources: a file for each text, its options and its compiler.
fn kept_path(text: &str, macros: &[&str]) -> Result<PathBuf, String> {
    let version = Command::new("c++").arg("--version").output();
    let version = version.map_err(|error| format!("c++: {error}"))?;
    let mut key = DefaultHasher::new();
    (text, compiler_options(), macros, version.stdout).hash(&mut key);
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let is_of_profile = |folder: &&Path| !folder.ends_with("deps");
    let folder = own.ancestors().skip(1).find(is_of_profile).unwrap_or(Path::new("."));
    Ok(folder.join("emulated-kernels").join(format!("{:016x}.so", key.finish())))
}

/// Keeps code under its path. One that cannot be written costs the next program the time to compile it.
fn keep(code: &[u8], path: &Path) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}-{number}", process::id()));
    let folder = path.parent().expect("it is in a folder");
    let _kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&part, code))
        .and_then(|()| fs::rename(&part, path));
}

/// Compiles a source, with macros as `-DNAME=VALUE`, unless that was done before.
///
/// # Errors
/// The compiler's output, or why there is no compiler.
pub fn build(source: &str, macros: &[&str]) -> Result<Vec<u8>, String> {
    let program = program(source);
    let path = kept_path(&program, macros)?;
    if let Ok(code) = fs::read(&path) {
        return Ok(code);
    }
    let code = compile(&program, macros)?;
    keep(&code, &path);
    Ok(code)
}

fn compile(program: &str, macros: &[&str]) -> Result<Vec<u8>, String> {
    let text = fresh_path("cpp");
    let library = fresh_path("so");
    fs::write(&text, program).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("c++");
    compiler.args(compiler_options());
    let output = compiler.args(macros).arg(&text).arg("-o").arg(&library).output();
    // A file that stays there harms nothing.
    let _removed = fs::remove_file(&text);
    let output = output.map_err(|error| format!("c++: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let code = fs::read(&library).map_err(|error| error.to_string());
    let _removed = fs::remove_file(&library);
    code
}

/// Where the header of an ELF file of 64 bits has flags, which this machine's loader does not look
/// at. A device's code holds there which architecture it is for.
const FLAGS: std::ops::Range<usize> = 0x30..0x34;

/// Code with the architecture that it is for in its flags.
pub(crate) fn with_architecture(mut code: Vec<u8>, architecture: u32) -> Vec<u8> {
    code[FLAGS].copy_from_slice(&architecture.to_le_bytes());
    code
}

/// The architecture in the flags of code.
pub(crate) fn architecture_of(code: &[u8]) -> u32 {
    u32::from_le_bytes(code[FLAGS].try_into().expect("four bytes"))
}

/// A kernel library that was loaded into this process.
pub struct KernelLibrary {
    library: Library,
}

/// A kernel of loaded code, which lives as long as its code does.
#[derive(Clone, Debug)]
pub struct LoadedKernel {
    /// The function that runs the kernel.
    pub entry: KernelEntry,
    /// Bytes of its arguments.
    pub argument_bytes: Vec<usize>,
    /// Threads that a block of it may have.
    pub threads_max: u32,
}

impl KernelLibrary {
    /// Loads the library that [`build`] made.
    ///
    /// # Errors
    /// If it is not code of this machine.
    pub fn load(code: &[u8]) -> Result<Self, String> {
        let path = fresh_path("so");
        fs::write(&path, code).map_err(|error| error.to_string())?;
        // SAFETY: made by `build`, whose programs have no initialisers of their own.
        let library = unsafe { Library::new(&path) };
        let _removed = fs::remove_file(&path);
        Ok(Self { library: library.map_err(|error| error.to_string())? })
    }

    /// A kernel's entry, if it has that kernel.
    #[must_use]
    pub fn entry(&self, kernel: &str) -> Option<KernelEntry> {
        self.symbol(&format!("emulated_{kernel}"))
    }

    fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: `program` writes the symbols with these types.
        unsafe { self.library.get::<T>(name.as_bytes()).ok().map(|symbol| *symbol) }
    }

    /// A kernel and the properties that a launch has to know of it.
    pub(crate) fn kernel(&self, name: &str) -> Option<LoadedKernel> {
        let sizes: ArgumentSizesFunction = self.symbol(&format!("emulated_sizes_{name}"))?;
        let bound: ThreadsMaxFunction = self.symbol(&format!("emulated_bound_{name}"))?;
        let mut argument_bytes = vec![0; ARGUMENTS_MAX];
        // SAFETY: as `program` wrote them.
        let (count, threads_max) =
            unsafe { (sizes(argument_bytes.as_mut_ptr(), ARGUMENTS_MAX), bound()) };
        assert!(count <= ARGUMENTS_MAX, "{name} takes {count} arguments");
        argument_bytes.truncate(count);
        Some(LoadedKernel { entry: self.entry(name)?, argument_bytes, threads_max })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{KernelDeclaration, KernelLibrary, build, declared, kept_path, program};
    use crate::EmulatedToolkit;

    const SOURCE: &str = "#line 1 \"prelude\"\ntypedef unsigned u32;\n#ifndef EMULATED\n#define KERNEL x\n\
        #endif\n#line 1 \"own\"\nconst u32 MANY = 64;\nKERNEL __launch_bounds__(MANY, 2)\n\
        two(float *to, u32 count) { if (threadIdx.x < count) to[threadIdx.x] = AMOUNT; }\n\
        KERNEL one(u32 *to) { *to = 1; }\n\
        KERNEL wide() { DYNAMIC_SHARED(u32, all); all[threadIdx.x] = 0; }\n";

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let two = KernelDeclaration { name: "two", threads_max: Some("MANY") };
        let others = ["one", "wide"].map(|name| KernelDeclaration { name, threads_max: None });
        assert_eq!(declared(SOURCE)[..1], [two]);
        assert_eq!(declared(SOURCE)[1..], others);
        assert!(program(SOURCE).contains("emulated_bound_two() { return MANY; }"));
    }

    #[test]
    fn what_was_built_is_loaded_and_says_what_it_takes() {
        if !EmulatedToolkit::is_possible() {
            return;
        }
        let built = build(SOURCE, &["-DAMOUNT=2.5f"]).expect("plain C++");
        let code = KernelLibrary::load(&built).expect("code of this machine");
        let two = code.kernel("two").expect("it is there");
        assert_eq!((two.argument_bytes.as_slice(), two.threads_max), (&[8, 4][..], 64));
        let mut floats = [0.0f32; 4];
        let mut to = floats.as_mut_ptr();
        let mut count = 3u32;
        let mut arguments = [(&raw mut to).cast(), (&raw mut count).cast()];
        // SAFETY: the arguments are as the kernel has them.
        let is_within =
            unsafe { (two.entry)([1, 1].as_ptr(), 4, 0, false, arguments.as_mut_ptr()) };
        assert!(is_within);
        assert_eq!(floats, [2.5, 2.5, 2.5, 0.0]);
        assert!(code.kernel("three").is_none());
        let wide = code.entry("wide").expect("it is there");
        let within = |shared_bytes| {
            // SAFETY: it takes nothing.
            unsafe { wide([1, 1].as_ptr(), 8, shared_bytes, false, std::ptr::null_mut()) }
        };
        assert!(within(32) && !within(28), "eight words are written");
        assert!(build(SOURCE, &[]).is_err_and(|error| error.contains("AMOUNT")));
    }

    #[test]
    fn a_source_is_compiled_once_for_each_value_of_its_macros() {
        if !EmulatedToolkit::is_possible() {
            return;
        }
        let path =
            |amount: &str| kept_path(&program(SOURCE), &[amount]).expect("there is a compiler");
        let kept = path("-DAMOUNT=7.5f");
        assert_ne!(kept, path("-DAMOUNT=8.5f"));
        let _may_not_be_there = fs::remove_file(&kept);
        let first = build(SOURCE, &["-DAMOUNT=7.5f"]).expect("plain C++");
        assert_eq!(fs::read(&kept).expect("it was kept"), first);
        fs::write(&kept, b"kept").expect("writable");
        assert_eq!(build(SOURCE, &["-DAMOUNT=7.5f"]).expect("it is there"), b"kept");
        fs::remove_file(kept).expect("it was kept");
    }
}
