//! CUDA C++ to a device's code, by NVRTC. No device is needed for it.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;

use super::error::{CompileError, CudaVersion, Library};
use super::library::require;
use super::source::CompilationUnit;

/// The compiler, found, with its version.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    version: CudaVersion,
}

/// A program that the compiler has, destroyed with its owner.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the handle is the compiler's, and destroyed once.
        let _destroyed = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn check(call: &'static str, result: sys::nvrtcResult) -> Result<(), CompileError> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the compiler returns a string of its own for every result.
    let name = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(CompileError::Call { call, name: name.to_string_lossy().into_owned() })
}

/// Bytes that the compiler has for us: a call for their number, and one that writes them.
fn fetch(
    call: &'static str,
    size: impl FnOnce(*mut usize) -> sys::nvrtcResult,
    write: impl FnOnce(*mut c_char) -> sys::nvrtcResult,
) -> Result<Vec<u8>, CompileError> {
    let mut len = 0;
    check(call, size(&mut len))?;
    let mut bytes = vec![0u8; len];
    check(call, write(bytes.as_mut_ptr().cast()))?;
    Ok(bytes)
}

/// The device's code of a compiled program.
fn code(program: &NvrtcProgram) -> Result<Vec<u8>, CompileError> {
    fetch(
        "nvrtcGetCUBIN",
        // SAFETY: a live program; the second call writes as many bytes as the first returned.
        |len| unsafe { sys::nvrtcGetCUBINSize(program.0, len) },
        |bytes| unsafe { sys::nvrtcGetCUBIN(program.0, bytes) },
    )
}

/// Registers that go to memory are a warning.
const STRICT_OPTIONS: [&str; 2] =
    ["--ptxas-options=--warn-on-spills", "--ptxas-options=--warn-on-local-memory-usage"];

impl Compiler {
    /// Finds NVRTC and its version.
    ///
    /// # Errors
    /// If it is not there.
    pub fn find() -> Result<Self, CompileError> {
        require(Library::Nvrtc)?;
        let mut major = 0;
        let mut minor = 0;
        // SAFETY: the library is there and writes two integers.
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        Ok(Self { version: CudaVersion { major: major as u32, minor: minor as u32 } })
    }

    /// The compiler's version, which is part of what compiled code depends on.
    #[must_use]
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    fn check_architecture(&self, unit: &CompilationUnit) -> Result<(), CompileError> {
        let mut count = 0;
        // SAFETY: the compiler writes one integer, and then as many integers as that counts.
        let known = unsafe {
            check("nvrtcGetNumSupportedArchs", sys::nvrtcGetNumSupportedArchs(&mut count))?;
            let mut known = vec![0; count as usize];
            check("nvrtcGetSupportedArchs", sys::nvrtcGetSupportedArchs(known.as_mut_ptr()))?;
            known
        };
        if known.contains(&(unit.architecture.number() as i32)) {
            return Ok(());
        }
        let architecture = unit.architecture;
        Err(CompileError::UnknownArchitecture { architecture, found: self.version })
    }

    /// The code of one file for one architecture. Warnings are not looked at: which there are
    /// depends on the compiler's version, and the sources were held to one by
    /// [`Self::compile_strictly`].
    ///
    /// # Errors
    /// If the compiler does not know the architecture, or refuses the source.
    pub fn compile(&self, unit: &CompilationUnit) -> Result<Vec<u8>, CompileError> {
        let (program, result) = self.begin(unit, &unit.file.source(), unit.options())?;
        if result != sys::nvrtcResult::NVRTC_SUCCESS {
            self.refuse_log(unit, &program)?;
        }
        check("nvrtcCompileProgram", result)?;
        code(&program)
    }

    /// The same for a given text, for tests: any message of the compiler is a refusal, and it warns
    /// of registers that go to memory, too.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn compile_strictly(
        &self,
        unit: &CompilationUnit,
        text: &str,
    ) -> Result<Vec<u8>, CompileError> {
        let mut options = unit.options();
        options.extend(STRICT_OPTIONS.map(str::to_owned));
        let (program, result) = self.begin(unit, text, options)?;
        self.refuse_log(unit, &program)?;
        check("nvrtcCompileProgram", result)?;
        code(&program)
    }

    fn begin(
        &self,
        unit: &CompilationUnit,
        text: &str,
        options: Vec<String>,
    ) -> Result<(NvrtcProgram, sys::nvrtcResult), CompileError> {
        self.check_architecture(unit)?;
        let source = CString::new(text).expect("sources have no zero bytes");
        let name = CString::new(unit.file.name()).expect("names have no zero bytes");
        let mut program = ptr::null_mut();
        // SAFETY: two C strings that the compiler copies, and no headers.
        let made = unsafe {
            let source = source.as_ptr();
            let name = name.as_ptr();
            sys::nvrtcCreateProgram(&mut program, source, name, 0, ptr::null(), ptr::null())
        };
        check("nvrtcCreateProgram", made)?;
        let program = NvrtcProgram(program);
        let options: Vec<CString> = options
            .into_iter()
            .map(|option| CString::new(option).expect("options have no zero bytes"))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: a live program and as many C strings as are counted.
        let result =
            unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
        Ok((program, result))
    }

    /// The compiler's log, if there is any, as a refusal.
    fn refuse_log(
        &self,
        unit: &CompilationUnit,
        program: &NvrtcProgram,
    ) -> Result<(), CompileError> {
        let log = fetch(
            "nvrtcGetProgramLog",
            // SAFETY: a live program; the second call writes as many bytes as the first returned.
            |len| unsafe { sys::nvrtcGetProgramLogSize(program.0, len) },
            |bytes| unsafe { sys::nvrtcGetProgramLog(program.0, bytes) },
        )?;
        let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
        if log.is_empty() {
            return Ok(());
        }
        Err(CompileError::Refused {
            file: unit.file.name(),
            architecture: unit.architecture,
            compiler: self.version,
            log,
        })
    }
}
