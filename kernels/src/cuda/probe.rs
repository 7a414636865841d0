//! What a device is and has, found out before anything is compiled or kept.

use super::cache::Cache;
use super::compiler::Compiler;
use super::driver::CudaDevice;
use super::error::{CacheWarning, CompileError, Library, OpenError};
use super::library::require;
use super::listing::{DeviceInfo, choose, devices, driver_version};
use super::products::library_version;
use super::source::{File, Precision, Unit};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What the driver reports of the device.
    pub info: DeviceInfo,
    /// The version of cublasLt, as the library counts: 130100 for 13.1.
    pub library_version: u64,
    /// Bytes of the device's memory that are free now.
    pub free_bytes: u64,
}

impl Probe {
    /// All that results depend on beside the run and this program: devices with the same class give the
    /// same bits.
    #[must_use]
    pub fn class(&self) -> String {
        let Self { info, library_version, .. } = self;
        format!("{}, {}, cublasLt {library_version}", info.name, info.architecture)
    }
}

/// Compiles the kernels of a device for both types of activations, as far as they are not on disk: takes
/// a minute at most where none is, and no time later. Yields what stood in the way of keeping them.
///
/// # Errors
/// If the compiler is not there or refuses a source.
pub fn compile_kernels(probe: &Probe, cache: &Cache) -> Result<Option<CacheWarning>, CompileError> {
    let compiler = Compiler::find()?;
    let mut warning = None;
    for precision in Precision::ALL {
        for file in File::ALL.into_iter().filter(|file| file.is_for(precision)) {
            let unit = Unit { file, precision, architecture: probe.info.architecture };
            warning = warning.or(cache.get(&compiler, &unit)?.warning);
        }
    }
    Ok(warning)
}

/// Looks at device `index` and at everything that it needs to be opened.
///
/// # Errors
/// If something is missing, too old, absent or refused; each error names the remedy.
pub fn probe(index: usize) -> Result<Probe, OpenError> {
    let driver = driver_version()?;
    let info = choose(&devices()?, index)?.clone();
    let compiler = Compiler::find()?.version();
    require(Library::CublasLt)?;
    if compiler.major > driver.major {
        return Err(CompileError::DriverTooOld { driver, compiler }.into());
    }
    let device = CudaDevice::begin(info.clone(), Precision::F32)?;
    let free_bytes = device.memory()?.free_bytes;
    Ok(Probe { info, library_version: library_version(), free_bytes })
}
