//! The devices of this machine.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys;

use super::architecture::Architecture;
use super::error::{CudaVersion, DeviceFault, Library, LibraryError, OpenError};
use super::library::require;

/// The oldest driver that has all calls this code makes; cudarc panics at one that is not there.
pub const DRIVER_OLDEST: CudaVersion = CudaVersion { major: 12, minor: 8 };

/// A device that the driver knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Index of the device, counted from 0, as CUDA_VISIBLE_DEVICES leaves them.
    pub index: usize,
    /// Name that NVIDIA gives the device.
    pub name: String,
    /// The architecture that the device's code is for.
    pub architecture: Architecture,
    /// Bytes of the device's whole memory.
    pub memory_bytes: u64,
    /// The number of streaming multiprocessors.
    pub multiprocessor_count: u32,
}

/// The code of a call's result as a fault.
pub(super) fn check(call: &'static str, result: sys::CUresult) -> Result<(), DeviceFault> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the driver writes a pointer to a string of its own, or null.
    let name = unsafe {
        let _known = sys::cuGetErrorName(result, &mut name);
        if name.is_null() {
            "unknown".to_owned()
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    };
    Err(DeviceFault::of_code(call, result as u32, name))
}

/// The free and the whole memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes of the whole memory.
    pub total_bytes: u64,
}

/// The memory of the current context's device. The driver reports a device that failed earlier
/// here, too.
pub(super) fn memory_here() -> Result<MemoryInfo, DeviceFault> {
    let mut free = 0usize;
    let mut total = 0usize;
    // SAFETY: the driver writes two sizes.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
}

/// The CUDA version of the driver, once it is found and new enough.
///
/// # Errors
/// If there is no driver, it is too old or it cannot be initialized.
pub fn driver_version() -> Result<CudaVersion, OpenError> {
    require(Library::Driver)?;
    let mut number = 0;
    // SAFETY: the driver is there and writes one integer.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut number) })?;
    let found = version(number);
    check_driver(found)?;
    Ok(found)
}

/// A version as CUDA writes it, 13020 for 13.2.
fn version(number: c_int) -> CudaVersion {
    let number = u32::try_from(number).expect("versions are positive");
    CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
}

fn check_driver(found: CudaVersion) -> Result<(), OpenError> {
    if found < DRIVER_OLDEST {
        return Err(OpenError::DriverTooOld { found, needed: DRIVER_OLDEST });
    }
    Ok(())
}

/// All devices, in the driver's order; none if there is no driver at all.
///
/// # Errors
/// If a driver is there and refuses.
pub fn devices() -> Result<Vec<DeviceProperties>, OpenError> {
    match driver_version() {
        Ok(_) => {}
        Err(OpenError::Library(LibraryError::DriverMissing)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    // SAFETY: the driver is there.
    let initialized = check("cuInit", unsafe { sys::cuInit(0) });
    if let Err(DeviceFault::Refused { code, .. }) = &initialized
        && *code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32
    {
        return Ok(Vec::new());
    }
    initialized?;
    let mut count = 0;
    // SAFETY: the driver writes one integer.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    let infos: Result<Vec<_>, DeviceFault> = (0..count).map(describe).collect();
    Ok(infos?)
}

fn describe(index: c_int) -> Result<DeviceProperties, DeviceFault> {
    let mut device = 0;
    let mut name = [0; 256];
    let mut memory_bytes = 0usize;
    // SAFETY: the driver writes a handle, at most 256 characters with a zero, and a size.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, index))?;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
    }
    use sys::CUdevice_attribute_enum as Attribute;
    let number = |attribute| {
        let mut value = 0;
        // SAFETY: the driver writes one integer.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
        check("cuDeviceGetAttribute", result).map(|()| value as u32)
    };
    let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessor_count = number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    Ok(DeviceProperties {
        index: index as usize,
        name: String::from_utf8_lossy(&bytes).into_owned(),
        architecture: Architecture::new(major, minor),
        memory_bytes: memory_bytes as u64,
        multiprocessor_count,
    })
}

/// The device of this index, if the kernels run on it.
///
/// # Errors
/// If there is none, or it is too old.
pub fn choose(devices: &[DeviceProperties], index: usize) -> Result<&DeviceProperties, OpenError> {
    if devices.is_empty() {
        return Err(OpenError::NoDevice);
    }
    let named = |device: &DeviceProperties| format!("{}: {}", device.index, device.name);
    let absent =
        || OpenError::DeviceAbsent { asked: index, found: devices.iter().map(named).collect() };
    let device = devices.get(index).ok_or_else(absent)?;
    if device.architecture < Architecture::OLDEST {
        return Err(OpenError::ArchitectureTooOld {
            device: device.name.clone(),
            found: device.architecture,
            needed: Architecture::OLDEST,
        });
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::{
        Architecture, CudaVersion, DeviceProperties, OpenError, check_driver, choose, version,
    };

    fn device(index: usize, major: u32, minor: u32) -> DeviceProperties {
        DeviceProperties {
            index,
            name: format!("device {index}"),
            architecture: Architecture::new(major, minor),
            memory_bytes: 1 << 30,
            multiprocessor_count: 100,
        }
    }

    #[test]
    fn a_device_is_chosen_among_those_there_are() {
        assert_eq!(choose(&[], 0), Err(OpenError::NoDevice));
        let devices = [device(0, 7, 5), device(1, 8, 0), device(2, 9, 0)];
        assert_eq!(choose(&devices, 2).map(|device| device.index), Ok(2));
        assert_eq!(choose(&devices, 1).map(|device| device.index), Ok(1));
        let found = ["0: device 0", "1: device 1", "2: device 2"].map(str::to_owned).to_vec();
        assert_eq!(choose(&devices, 3), Err(OpenError::DeviceAbsent { asked: 3, found }));
        assert!(matches!(choose(&devices, 0), Err(OpenError::ArchitectureTooOld { .. })));
    }

    #[test]
    fn old_drivers_are_refused() {
        assert_eq!(version(13_020), CudaVersion { major: 13, minor: 2 });
        assert_eq!(check_driver(version(12_080)), Ok(()));
        assert_eq!(check_driver(version(13_000)), Ok(()));
        let found = version(12_070);
        let needed = CudaVersion { major: 12, minor: 8 };
        assert_eq!(check_driver(found), Err(OpenError::DriverTooOld { found, needed }));
    }
}
