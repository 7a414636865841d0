//! Modules, kernels and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::slice;

use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute, CUmodule, CUresult, CUstream};

use super::{in_context, own_stream, put};
use crate::code::{KernelLibrary, LoadedKernel, architecture_of};
use crate::machine::work::{EmulatedLaunch, StreamWork};
use crate::machine::{LoadedFunction, LoadedModule};

/// Shared memory that any launch may request, and that one may be allowed at most.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;
const SHARED_BYTES_MAX: u32 = 227 << 10;
/// Blocks in the second direction.
const GRID_Y_MAX: u32 = 65_535;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// Offsets in the header of an ELF file of 64 bits: where the table of sections is, how long one
/// entry is, and how many there are (System V ABI, chapter 4).
const SECTIONS_AT: usize = 0x28;
const SECTION_BYTES_AT: usize = 0x3a;
const SECTION_COUNT_AT: usize = 0x3c;
const HEADER_BYTES: usize = 64;

/// The bytes of an image, as many as its header gives: its table of sections comes last.
///
/// # Safety
/// `image` may be read as far as its header gives.
unsafe fn whole<'a>(image: *const u8) -> Option<&'a [u8]> {
    // SAFETY: as the caller promises.
    let header = unsafe { slice::from_raw_parts(image, HEADER_BYTES) };
    if header[..4] != ELF_MAGIC {
        return None;
    }
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes]
            .iter()
            .rev()
            .fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let table = number(SECTION_BYTES_AT, 2) * number(SECTION_COUNT_AT, 2);
    let bytes = number(SECTIONS_AT, 8) + table;
    // SAFETY: as the caller promises.
    Some(unsafe { slice::from_raw_parts(image, bytes) })
}

/// A kernel's arguments as they are now.
///
/// # Safety
/// `from` has a pointer for each argument, and each may be read so far.
unsafe fn copied(kernel: &LoadedKernel, from: *mut *mut c_void) -> Vec<Vec<u128>> {
    let copy = |(index, bytes): (usize, &usize)| {
        let mut words = vec![0u128; bytes.div_ceil(size_of::<u128>())];
        // SAFETY: as the caller promises.
        unsafe {
            let argument = (*from.add(index)).cast::<u8>();
            std::ptr::copy_nonoverlapping(argument, words.as_mut_ptr().cast(), *bytes);
        }
        words
    };
    kernel.argument_bytes.iter().enumerate().map(copy).collect()
}

calls! {
    fn cuModuleLoadData(to: *mut CUmodule, image: *const c_void) -> CUresult {
        in_context(|machine, device| {
            // SAFETY: the caller's image.
            let image = unsafe { whole(image.cast()) }.ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
            // Code runs on devices of its generation that are as new as it, or newer.
            let own = machine.settings.capability;
            let of = architecture_of(image);
            if own / 10 != of / 10 || own < of {
                return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
            }
            let code = KernelLibrary::load(image).map_err(|_| CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)?;
            let module = machine.fresh_handle();
            machine.modules.insert(module, LoadedModule { device, code });
            // SAFETY: the caller's pointer.
            unsafe { put(to, module as CUmodule) }
        })
    }

    fn cuModuleUnload(module: CUmodule) -> CUresult {
        in_context(|machine, _| {
            let module = module as u64;
            machine.functions.retain(|_, function| function.module != module);
            let removed = machine.modules.remove(&module);
            removed.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
        })
    }

    fn cuModuleGetFunction(to: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult {
        in_context(|machine, device| {
            let module = module as u64;
            let code = &machine.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.code;
            // SAFETY: the caller's string.
            let name = unsafe { CStr::from_ptr(name) }.to_str().ok();
            let kernel = name.and_then(|name| code.kernel(name)).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
            let function = machine.fresh_handle();
            let found = LoadedFunction { device, kernel, shared_bytes_max: SHARED_BYTES_PLAIN, module };
            machine.functions.insert(function, found);
            // SAFETY: the caller's pointer.
            unsafe { put(to, function as CUfunction) }
        })
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int) -> CUresult {
        in_context(|machine, _| {
            let function = machine.functions.get_mut(&(function as u64));
            let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= SHARED_BYTES_MAX);
            let is_known = attribute == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = bytes.filter(|_| is_known).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            function.shared_bytes_max = bytes;
            Ok(())
        })
    }

    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult {
        in_context(|machine, device| {
            own_stream(machine, device, stream as u64)?;
            let found = machine.functions.get(&(function as u64));
            let found = found.filter(|found| found.device == device);
            let found = found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let has_blocks = (1..=i32::MAX as u32).contains(&grid_x) && (1..=GRID_Y_MAX).contains(&grid_y);
            let has_threads = (1..=found.kernel.threads_max).contains(&block_x);
            let is_plain = (grid_z, block_y, block_z) == (1, 1, 1) && extra.is_null();
            if !has_blocks || !is_plain || shared_bytes > found.shared_bytes_max {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if !has_threads {
                return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
            }
            let launch = EmulatedLaunch {
                entry: found.kernel.entry,
                grid: [grid_x, grid_y],
                threads: block_x,
                shared_bytes,
                is_backwards: machine.settings.is_backwards,
                // SAFETY: the caller's arguments are as many as the kernel has.
                arguments: unsafe { copied(&found.kernel, arguments) },
            };
            machine.enqueue(stream as u64, StreamWork::Launch(launch))
        })
    }
}
