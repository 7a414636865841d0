//! The calls of NVRTC: CUDA C++ becomes code of this machine.

use std::ffi::{CStr, CString, c_char, c_int};
use std::{ptr, slice};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use crate::code::{build, with_architecture};
use crate::driver::calls;
use crate::names::name_of;

/// The version of the compiler that it stands for.
const VERSION: [c_int; 2] = [13, 0];
/// The architectures that it knows.
const ARCHITECTURES: [c_int; 4] = [80, 86, 90, 100];

struct EmulatedProgram {
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

/// Options without which numbers would not be those of this machine's code, and one that is
/// allowed.
const REQUIRED: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];
const ALLOWED: [&str; 1] = ["--device-as-default-execution-space"];
const ARCHITECTURE: &str = "--gpu-architecture=sm_";

/// The architecture that code is for, if this machine's code does what the options require.
fn architecture(options: &[String]) -> Result<u32, String> {
    let mut numbers = options.iter().filter_map(|option| option.strip_prefix(ARCHITECTURE));
    let number = numbers.next_back().and_then(|number| number.parse::<c_int>().ok());
    let number = number.filter(|number| ARCHITECTURES.contains(number));
    let number = number.ok_or("nvrtc: error: invalid value for --gpu-architecture (-arch)")?;
    let is_known = |option: &&String| {
        let plain = REQUIRED.iter().chain(&ALLOWED).any(|known| known == option);
        plain || option.starts_with(ARCHITECTURE) || option.starts_with("-D")
    };
    if let Some(option) = options.iter().find(|option| !is_known(option)) {
        return Err(format!("nvrtc: error: unrecognized option {option} found"));
    }
    match REQUIRED.iter().find(|required| !options.iter().any(|option| option == *required)) {
        Some(required) => {
            Err(format!("emulator: without {required} a device computes something else"))
        }
        None => Ok(number as u32),
    }
}

/// # Safety
/// `program` is from `nvrtcCreateProgram`.
unsafe fn get<'a>(program: nvrtcProgram) -> &'a mut EmulatedProgram {
    // SAFETY: as the caller promises.
    unsafe { &mut *program.cast::<EmulatedProgram>() }
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
        // SAFETY: the caller has memory for as many as `nvrtcGetNumSupportedArchs` counted.
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
            let program = EmulatedProgram { source, log: CString::default(), code: None };
            to.write(Box::into_raw(Box::new(program)).cast());
        }
        nvrtcResult::NVRTC_SUCCESS
    }

    fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult {
        // SAFETY: from `nvrtcCreateProgram`, destroyed once.
        unsafe {
            drop(Box::from_raw((*program).cast::<EmulatedProgram>()));
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
        let architecture = match architecture(&options) {
            Ok(architecture) => architecture,
            Err(text) => {
                program.log = log(text);
                return nvrtcResult::NVRTC_ERROR_INVALID_OPTION;
            }
        };
        let macros: Vec<&str> =
            options.iter().map(String::as_str).filter(|option| option.starts_with("-D")).collect();
        match build(&program.source, &macros) {
            Ok(code) => program.code = Some(with_architecture(code, architecture)),
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
        // SAFETY: a live program; the caller has memory for as many as `nvrtcGetProgramLogSize`
        // returned.
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
        // SAFETY: a live program; the caller has memory for as many as `nvrtcGetCUBINSize`
        // returned.
        unsafe {
            match &get(program).code {
                None => return nvrtcResult::NVRTC_ERROR_INVALID_PROGRAM,
                Some(code) => ptr::copy_nonoverlapping(code.as_ptr().cast(), to, code.len()),
            }
        }
        nvrtcResult::NVRTC_SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::{REQUIRED, architecture};

    #[test]
    fn options_that_change_numbers_are_not_forgotten() {
        let all = |more: &str| {
            let words = REQUIRED.iter().copied().chain(more.split_whitespace());
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(architecture(&all("--gpu-architecture=sm_90 -DX=1")), Ok(90));
        assert!(architecture(&all("--gpu-architecture=sm_37")).is_err());
        assert!(architecture(&all("--gpu-architecture=sm_90 --use_fast_math")).is_err());
        let mut some = all("--gpu-architecture=sm_90");
        some.remove(1);
        assert!(architecture(&some).is_err_and(|text| text.contains("--fmad=false")));
    }
}
