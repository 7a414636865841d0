//! The driver's calls, under its names and with its types.
//!
//! Each checks first the manual's requirements of a caller: that the driver is initialized, that a
//! context is current, that every named object exists and belongs to that context.

/// Calls under their own names, whose types are those that cudarc calls them with.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        const _: unsafe fn($($type),*) -> $result = sys::$name;
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    )*};
}
pub(crate) use calls;

mod code;
mod memory;
mod streams;

use std::cell::Cell;
use std::env;
use std::ffi::{c_char, c_int, c_uint};
use std::process::abort;
use std::sync::{LazyLock, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult};

use crate::machine::{DriverResult, EmulatedMachine};
use crate::names::name_of;
use crate::settings::{BEGINS, EmulatorSettings, REPORT_VARIABLE};

static MACHINE: LazyLock<Mutex<EmulatedMachine>> = LazyLock::new(|| {
    let settings = EmulatorSettings::of_environment().unwrap_or_else(|error| {
        eprintln!("{error}");
        abort();
    });
    if env::var_os(REPORT_VARIABLE).is_some() {
        eprintln!("{BEGINS}{}", settings.text());
    }
    Mutex::new(EmulatedMachine::new(settings))
});

thread_local! {
    /// The device whose context is current here.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A multiprocessor count that is no power of two, as real ones are.
const MULTIPROCESSORS: c_int = 6;
/// Contexts are distinguished by the device they are of.
const CONTEXTS_FROM: usize = 0x100;
const CONTEXT_STEP: usize = 0x10;

/// Changes the machine, alone.
fn with<T>(change: impl FnOnce(&mut EmulatedMachine) -> DriverResult<T>) -> DriverResult<T> {
    change(&mut MACHINE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn code(result: DriverResult<()>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// A call that needs the driver alone.
fn initialized(change: impl FnOnce(&mut EmulatedMachine) -> DriverResult<()>) -> CUresult {
    code(with(|machine| {
        if !machine.is_initialized {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
        change(machine)
    }))
}

/// A call that needs a context, whose device has not failed.
fn in_context(change: impl FnOnce(&mut EmulatedMachine, usize) -> DriverResult<()>) -> CUresult {
    initialized(|machine| {
        let device = CURRENT.get().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if machine.devices[device].holders == 0 {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        machine.check(device)?;
        change(machine, device)
    })
}

/// Enqueues work in a stream for a library beside the driver.
pub(crate) fn enqueue(stream: u64, work: crate::machine::work::StreamWork) -> CUresult {
    in_context(|machine, device| {
        own_stream(machine, device, stream)?;
        machine.enqueue(stream, work)
    })
}

/// Whether there is a context for a library to work in.
pub(crate) fn has_context() -> bool {
    current_device().is_some()
}

/// The device of the context that a library works in.
pub(crate) fn current_device() -> Option<usize> {
    let mut found = None;
    let _code = in_context(|_, device| {
        found = Some(device);
        Ok(())
    });
    found
}

fn own_stream(machine: &EmulatedMachine, device: usize, stream: u64) -> DriverResult<()> {
    match machine.streams.get(&stream) {
        Some(queue) if queue.device == device => Ok(()),
        Some(_) | None => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

fn device_of(machine: &EmulatedMachine, device: CUdevice) -> DriverResult<usize> {
    let index = usize::try_from(device).ok().filter(|index| *index < machine.devices.len());
    index.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

fn context_of(machine: &EmulatedMachine, context: CUcontext) -> DriverResult<usize> {
    let offset = (context as usize).checked_sub(CONTEXTS_FROM);
    let index =
        offset.filter(|offset| offset % CONTEXT_STEP == 0).map(|offset| offset / CONTEXT_STEP);
    let device = index.filter(|index| *index < machine.devices.len());
    let device = device.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    if machine.devices[device].holders == 0 {
        return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    Ok(device)
}

/// The codes that drivers return which cannot be used as they are.
fn refusal_of(code: u32) -> CUresult {
    let all = [
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
    ];
    let found = all.into_iter().find(|known| *known as u32 == code);
    found.unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> DriverResult<()> {
    if to.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

calls! {
    fn cuInit(flags: c_uint) -> CUresult {
        code(with(|machine| {
            if flags != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if let Some(refusal) = machine.settings.refusal {
                return Err(refusal_of(refusal));
            }
            if machine.devices.is_empty() {
                return Err(CUresult::CUDA_ERROR_NO_DEVICE);
            }
            machine.is_initialized = true;
            Ok(())
        }))
    }

    fn cuDriverGetVersion(to: *mut c_int) -> CUresult {
        // SAFETY: the caller's pointer.
        code(with(|machine| unsafe { put(to, machine.settings.driver as c_int) }))
    }

    fn cuGetErrorName(result: CUresult, to: *mut *const c_char) -> CUresult {
        // SAFETY: the caller's pointer.
        code(unsafe { put(to, name_of(result)) })
    }

    fn cuDeviceGetCount(to: *mut c_int) -> CUresult {
        // SAFETY: the caller's pointer.
        initialized(|machine| unsafe { put(to, machine.devices.len() as c_int) })
    }

    fn cuDeviceGet(to: *mut CUdevice, index: c_int) -> CUresult {
        initialized(|machine| {
            device_of(machine, index)?;
            // SAFETY: the caller's pointer.
            unsafe { put(to, index) }
        })
    }

    fn cuDeviceGetName(to: *mut c_char, capacity: c_int, device: CUdevice) -> CUresult {
        initialized(|machine| {
            device_of(machine, device)?;
            let name = c"Emulated device".to_bytes_with_nul();
            let count = name.len().min(usize::try_from(capacity).unwrap_or(0));
            for (index, byte) in name[..count].iter().enumerate() {
                // SAFETY: the caller has memory for so many.
                unsafe { to.add(index).write(*byte as c_char) };
            }
            Ok(())
        })
    }

    fn cuDeviceTotalMem_v2(to: *mut usize, device: CUdevice) -> CUresult {
        initialized(|machine| {
            device_of(machine, device)?;
            // SAFETY: the caller's pointer.
            unsafe { put(to, (machine.settings.memory_mib << 20) as usize) }
        })
    }

    fn cuDeviceGetAttribute(to: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) -> CUresult {
        initialized(|machine| {
            device_of(machine, device)?;
            let capability = machine.settings.capability as c_int;
            let number = if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR {
                capability / 10
            } else if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR {
                capability % 10
            } else if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT {
                MULTIPROCESSORS
            } else {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            };
            // SAFETY: the caller's pointer.
            unsafe { put(to, number) }
        })
    }

    fn cuDevicePrimaryCtxRetain(to: *mut CUcontext, device: CUdevice) -> CUresult {
        initialized(|machine| {
            let device = device_of(machine, device)?;
            machine.check(device)?;
            machine.devices[device].holders += 1;
            // SAFETY: the caller's pointer.
            unsafe { put(to, (CONTEXTS_FROM + device * CONTEXT_STEP) as CUcontext) }
        })
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
        initialized(|machine| {
            let device = device_of(machine, device)?;
            match machine.devices[device].holders {
                0 => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
                1 => machine.end_context(device),
                holders => machine.devices[device].holders = holders - 1,
            }
            Ok(())
        })
    }

    fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
        initialized(|machine| {
            let device = if context.is_null() { None } else { Some(context_of(machine, context)?) };
            CURRENT.set(device);
            Ok(())
        })
    }

    fn cuDeviceCanAccessPeer(to: *mut c_int, own: CUdevice, other: CUdevice) -> CUresult {
        initialized(|machine| {
            let own = device_of(machine, own)?;
            let other = device_of(machine, other)?;
            // SAFETY: the caller's pointer.
            unsafe { put(to, c_int::from(own != other)) }
        })
    }

    fn cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint) -> CUresult {
        in_context(|machine, device| {
            let other = context_of(machine, context)?;
            if flags != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if other == device {
                return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
            }
            let peers = &mut machine.devices[device].peers;
            if peers.contains(&other) {
                return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
            }
            peers.push(other);
            Ok(())
        })
    }
}
