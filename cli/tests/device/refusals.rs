//! The error for a device where none can be had: printed at once, and the same everywhere.

use tempfile::tempdir;
use zbelastic_kernels::cuda::{LibraryError, OpenError, driver_version};

use crate::common::{refusal, zbelastic};

/// Whether this machine has no driver at all: only then is it known which error is printed.
fn has_no_driver() -> bool {
    let is_missing = driver_version() == Err(OpenError::Library(LibraryError::DriverMissing));
    if !is_missing {
        println!("skipped: this machine has a driver");
    }
    is_missing
}

#[test]
fn where_there_is_no_driver_every_command_says_so_before_anything_else() {
    if !has_no_driver() {
        return;
    }
    let place = tempdir().expect("a folder");
    let config = place.path().join("run.toml");
    std::fs::write(&config, "[model]\npreset = \"tiny\"\n[train]\ndevice = \"cuda\"\n")
        .expect("writable");
    let config = config.to_str().expect("UTF-8");
    let check = |line: &[&str], device: &str| {
        let stderr = refusal(zbelastic(line).current_dir(place.path()), 7);
        let begins = format!("error: {device}: no NVIDIA driver on this machine: libcuda.so");
        assert!(stderr.starts_with(&begins), "{line:?}: {stderr}");
        assert!(
            stderr.contains("install the driver") && stderr.contains("on processors"),
            "{stderr}"
        );
        // The text is not read, and no folder is made.
        assert!(!stderr.contains("missing.txt"), "{stderr}");
    };
    check(&["train", "--device", "cuda:0", "--text", "missing.txt"], "cuda:0");
    check(&["train", "--device", "cuda:3,cuda:0", "--threads-only"], "cuda:3");
    check(&["train", config, "--text", "missing.txt"], "cuda:0");
    check(&["join", "--device", "cuda:1", "--cluster", "nowhere:1"], "cuda:1");
    check(&["bench", "gpu", "--quick"], "cuda:0");
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A flag wins over the file: a machine without a device can run the same file.
#[test]
fn the_cpu_can_be_named_whatever_the_file_says() {
    let place = tempdir().expect("a folder");
    let config = place.path().join("run.toml");
    std::fs::write(&config, "[model]\npreset = \"tiny\"\n[train]\ndevice = \"cuda\"\nsteps = 1\n")
        .expect("writable");
    let config = config.to_str().expect("UTF-8");
    let line = ["train", config, "--device", "cpu", "--threads-only", "--out", "out"];
    let output = zbelastic(&line).current_dir(place.path()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let kept = std::fs::read_to_string(place.path().join("out/config.toml")).expect("kept");
    assert!(kept.contains("device = \"cpu\""), "{kept}");
}

#[test]
fn what_no_device_can_do_is_refused_as_a_mistake_of_the_configuration() {
    let check = |line: &[&str], words: &[&str]| {
        let stderr = refusal(&mut zbelastic(line), 2);
        for word in words {
            assert!(stderr.contains(word), "no {word} in: {stderr}");
        }
    };
    check(&["train", "--device", "cuda:x"], &["\"x\" is no number of a device", "cuda:0"]);
    check(&["join", "--device", "cuda"], &["expected cuda:N with N from 0"]);
}
