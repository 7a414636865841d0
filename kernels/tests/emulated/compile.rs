//! The kernels as code of this machine, by its C++ compiler.

use zbelastic_emulator::{KernelEntry, KernelLibrary, build};
use zbelastic_kernels::cuda::kernel::Kernel;
use zbelastic_kernels::cuda::source::{KernelFile, Precision};

/// The entries of all kernels of a precision, or nothing without a C++ compiler.
pub fn entries(precision: Precision) -> Option<Vec<(Kernel, KernelEntry)>> {
    let mut entries = Vec::new();
    for file in KernelFile::ALL.into_iter().filter(|file| file.is_for(precision)) {
        let code = match build(&file.source(), &[precision.option()]) {
            Err(error) if error.starts_with("c++:") => return None,
            built => built.unwrap_or_else(|error| panic!("{}:\n{error}", file.name())),
        };
        let code = KernelLibrary::load(&code).expect("it was just made");
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.file() == file) {
            let entry = code.entry(kernel.name()).expect("every kernel has an entry");
            entries.push((kernel, entry));
        }
        // Entries are used as long as the process lives.
        std::mem::forget(code);
    }
    Some(entries)
}
