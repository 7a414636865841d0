//! The calls of NVRTC: CUDA C++ becomes code of this machine.

use std::ffi::{CStr, CString, c_char, c_int};
use std::{ptr, slice};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use crate::code::build;
use crate::driver::calls;
use crate::names::name_of;

/// The version of the compiler that it stands for.
const VERSION: [c_int; 2] = [13, 0];
/// The architectures that it knows.
const ARCHITECTURES: [c_int; 4] = [80, 86, 90, 100];

struct Program {
    source: String,
    log: CString,
    code: Option<Vec<u8>>,
}

fn options(count: c_int, list: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller has so many strings.
    let list = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } };
    // SAFETY: as above.
    let text = |option: &*const c_char| unsafe { CStr::from_ptr(*option) };
    list.iter().map(|option| text(option).to_string_lossy().into_owned()).collect()
}

/// Whether code of this machine does what these options ask for, as far as that can be said.
fn check(options: &[String]) -> Result<(), String> {
    let known = |option: &str| {
        let architecture = option.strip_prefix("--gpu-architecture=sm_");
        let is_known =
            |number: &str| number.parse().is_ok_and(|number| ARCHITECTURES.contains(&number));
        match architecture {
            Some(number) => is_known(number),
            None => option.starts_with("--") || option.starts_with("-D"),
        }
    };
    match options.iter().find(|option| !known(option)) {
        None => Ok(()),
        Some(option) => Err(format!("nvrtc: error: invalid value for {option}")),
    }
}

/// # Safety
/// `program` is from `nvrtcCreateProgram`.
unsafe fn get<'a>(program: nvrtcProgram) -> &'a mut Program {
    // SAFETY: the caller's word.
    unsafe { &mut *program.cast::<Program>() }
}

calls! {
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult {
        // SAFETY: the caller's pointers.
        unsafe {
            major.write(VERSION[0]);
            minor.write(VERSION[1]);
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetErrorString(result: nvrtcResult) -> *const c_char {
        name_of(result)
    }

    fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult {
        // SAFETY: the caller's pointer.
        unsafe { count.write(ARCHITECTURES.len() as c_int) };
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetSupportedArchs(to: *mut c_int) -> nvrtcResult {
        // SAFETY: the caller has room for as many as it was told.
        unsafe { ptr::copy_nonoverlapping(ARCHITECTURES.as_ptr(), to, ARCHITECTURES.len()) };
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcCreateProgram(
        to: *mut nvrtcProgram,
        source: *const c_char,
        _name: *const c_char,
        header_count: c_int,
        _headers: *const *const c_char,
        _header_names: *const *const c_char,
    ) -> nvrtcResult {
        if header_count != 0 {
            return nvrtcResult::NVRTC_ERROR_INVALID_INPUT;
        }
        // SAFETY: the caller's string and pointer.
        unsafe {
            let source = CStr::from_ptr(source).to_string_lossy().into_owned();
            let program = Program { source, log: CString::default(), code: None };
            to.write(Box::into_raw(Box::new(program)).cast());
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult {
        // SAFETY: from `nvrtcCreateProgram`, destroyed once.
        unsafe {
            drop(Box::from_raw((*program).cast::<Program>()));
            program.write(ptr::null_mut());
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcCompileProgram(
        program: nvrtcProgram,
        count: c_int,
        list: *const *const c_char,
    ) -> nvrtcResult {
        // SAFETY: a live program.
        let program = unsafe { get(program) };
        let options = options(count, list);
        let log = |text: String| CString::new(text.replace('\0', " ")).expect("none are left");
        if let Err(text) = check(&options) {
            program.log = log(text);
            return nvrtcResult::NVRTC_ERROR_INVALID_OPTION;
        }
        let macros: Vec<&str> =
            options.iter().map(String::as_str).filter(|option| option.starts_with("-D")).collect();
        match build(&program.source, &macros) {
            Ok(code) => program.code = Some(code),
            Err(text) => {
                program.log = log(text);
                return nvrtcResult::NVRTC_ERROR_COMPILATION;
            }
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult {
        // SAFETY: a live program and the caller's pointer.
        unsafe { bytes.write(get(program).log.as_bytes_with_nul().len()) };
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetProgramLog(program: nvrtcProgram, to: *mut c_char) -> nvrtcResult {
        // SAFETY: a live program; the caller has room for as many as it was told.
        unsafe {
            let log = get(program).log.as_bytes_with_nul();
            ptr::copy_nonoverlapping(log.as_ptr().cast(), to, log.len());
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult {
        // SAFETY: a live program and the caller's pointer.
        unsafe {
            match &get(program).code {
                None => return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
                Some(code) => bytes.write(code.len()),
            }
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcGetCUBIN(program: nvrtcProgram, to: *mut c_char) -> nvrtcResult {
        // SAFETY: a live program; the caller has room for as many as it was told.
        unsafe {
            match &get(program).code {
                None => return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
                Some(code) => ptr::copy_nonoverlapping(code.as_ptr().cast(), to, code.len()),
            }
        }
        nvrtcResult::NVRTC_SUCCESS
    }
}
