//! Every kernel, compiled for real for every architecture of interest; a warning is a failure.
//! Needs NVRTC and no device. `ZBELASTIC_CUDA_LIBS` names the folder with the library.

#![cfg(feature = "cuda")]

use zbelastic_kernels::cuda::cache::KernelCache;
use zbelastic_kernels::cuda::compiler::Compiler;
use zbelastic_kernels::cuda::source::{CompilationUnit, KernelFile, Precision};
use zbelastic_kernels::cuda::{Architecture, CompileError, LibraryError};

/// The compiler, or nothing and a printed line with the reason. Where the library must be there,
/// `ZBELASTIC_TOOLS_REQUIRED` turns that into a failure.
fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(CompileError::Library(error @ LibraryError::Missing { .. })) => {
            assert!(std::env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_none(), "{error}");
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn units() -> impl Iterator<Item = CompilationUnit> {
    let of_file = |file: KernelFile| {
        let precisions = Precision::ALL.into_iter().filter(move |it| file.is_for(*it));
        precisions.flat_map(move |precision| {
            Architecture::TESTED.map(|architecture| CompilationUnit {
                file,
                precision,
                architecture,
            })
        })
    };
    KernelFile::ALL.into_iter().flat_map(of_file)
}

#[test]
fn every_kernel_compiles_without_a_warning() {
    let Some(compiler) = compiler() else { return };
    let refused: Vec<String> = units()
        .filter_map(|unit| match compiler.compile_strictly(&unit, &unit.file.source()) {
            Ok(code) => {
                assert!(code.starts_with(b"\x7fELF"), "{unit:?}: no device code");
                None
            }
            Err(error) => Some(format!("{unit:?}: {error}")),
        })
        .collect();
    assert!(refused.is_empty(), "NVRTC {}\n{}", compiler.version(), refused.join("\n"));
    println!("compiled {} units with NVRTC {}", units().count(), compiler.version());
}

#[test]
fn a_warning_is_a_refusal() {
    let Some(compiler) = compiler() else { return };
    let unit = units().next().expect("there are units");
    let warned = format!("{}\nKERNEL planted() {{ int unused; }}\n", unit.file.source());
    let error =
        compiler.compile_strictly(&unit, &warned).expect_err("a variable that is never read");
    let CompileError::Refused { file, log, .. } = error else { panic!("{error}") };
    assert_eq!(file, unit.file.name());
    assert!(log.contains("unused"), "{log}");
}

#[test]
fn a_kernel_is_compiled_once_and_then_read_from_disk() {
    let Some(compiler) = compiler() else { return };
    let unit = units().next().expect("there are units");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-cache");
    let _may_not_be_there = std::fs::remove_dir_all(&folder);
    let cache = KernelCache::new(folder.clone());
    let first = cache.get(&compiler, &unit).expect("it compiles");
    assert_eq!((first.is_from_disk, first.warning), (false, None));
    let second = cache.get(&compiler, &unit).expect("it is there");
    assert!(second.is_from_disk && second.code == first.code);
    std::fs::remove_dir_all(folder).expect("it was made");
}

#[test]
fn a_kernel_that_cannot_be_kept_is_compiled_once_a_process() {
    let Some(compiler) = compiler() else { return };
    let unit = units().next().expect("there are units");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml/kernels");
    let cache = KernelCache::new(folder);
    let first = cache.get(&compiler, &unit).expect("it compiles");
    assert!(first.warning.is_some(), "a file is no folder");
    let second = cache.get(&compiler, &unit).expect("it was kept");
    assert_eq!((second.is_from_disk, second.warning), (false, None));
    assert!(second.code == first.code);
}

#[test]
fn an_unknown_architecture_is_refused_by_name() {
    let Some(compiler) = compiler() else { return };
    let architecture = Architecture::new(3, 7);
    let unit = CompilationUnit { architecture, ..units().next().expect("there are units") };
    let error = compiler.compile(&unit).expect_err("too old for any NVRTC we use");
    assert!(matches!(error, CompileError::UnknownArchitecture { .. }), "{error}");
    assert!(error.to_string().contains("sm_37"));
}
