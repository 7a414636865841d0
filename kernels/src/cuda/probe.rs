//! The properties of a device, found before anything is compiled or allocated.

use super::cache::KernelCache;
use super::compiler::Compiler;
use super::cublas::library_version;
use super::devices::{DeviceProperties, choose, devices, driver_version};
use super::driver::CudaDevice;
use super::error::{CacheWarning, CompileError, Library, OpenError};
use super::library::require;
use super::source::{CompilationUnit, KernelFile, Precision};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProbe {
    /// What the driver reports of the device.
    pub info: DeviceProperties,
    /// The version of cublasLt, as the library counts: 130100 for 13.1.
    pub library_version: u64,
    /// Bytes of the device's memory that are free now.
    pub free_bytes: u64,
}

impl DeviceProbe {
    /// All that results depend on beside the run and this program: devices with the same class give
    /// the same bits.
    #[must_use]
    pub fn class(&self) -> String {
        let Self { info, library_version, .. } = self;
        format!("{}, {}, cublasLt {library_version}", info.name, info.architecture)
    }
}

/// Compiles the kernels of a device for both types of activations, as far as they are not on disk:
/// takes a minute at most where none is, and no time later. Returns why some could not be kept on
/// disk.
///
/// # Errors
/// If the compiler is not there or refuses a source.
pub fn compile_kernels(
    probe: &DeviceProbe,
    cache: &KernelCache,
) -> Result<Option<CacheWarning>, CompileError> {
    let compiler = Compiler::find()?;
    let mut warning = None;
    for precision in Precision::ALL {
        for file in KernelFile::ALL.into_iter().filter(|file| file.is_for(precision)) {
            let unit = CompilationUnit { file, precision, architecture: probe.info.architecture };
            warning = warning.or(cache.get(&compiler, &unit)?.warning);
        }
    }
    Ok(warning)
}

/// Looks at device `index` and at everything that it needs to be opened.
///
/// # Errors
/// If something is missing, too old, absent or refused; each error names the remedy.
pub fn probe(index: usize) -> Result<DeviceProbe, OpenError> {
    let driver = driver_version()?;
    let info = choose(&devices()?, index)?.clone();
    let compiler = Compiler::find()?.version();
    require(Library::CublasLt)?;
    if compiler.major > driver.major {
        return Err(CompileError::DriverTooOld { driver, compiler }.into());
    }
    let device = CudaDevice::begin(info.clone(), Precision::F32)?;
    let free_bytes = device.memory()?.free_bytes;
    Ok(DeviceProbe { info, library_version: library_version(), free_bytes })
}
