//! The errors that are printed on a machine that lacks something.

use zbelastic_emulator::{EmulatedLibrary, EmulatorSettings};

use crate::common::{refusal, text, zbelastic};
use crate::{DriverSetup, digest};

#[test]
fn drivers_and_devices_that_will_not_do_are_named() {
    let Some(setup) = DriverSetup::new() else { return };
    let cases = [
        (
            EmulatorSettings { driver: 12_040, ..EmulatorSettings::DEFAULT },
            "",
            ["for CUDA 12.4", "at least 12.8", "update the driver"],
        ),
        (
            EmulatorSettings { devices: 0, ..EmulatorSettings::DEFAULT },
            "",
            ["finds no device", "nvidia-smi", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            EmulatorSettings::DEFAULT,
            "--device cuda:1",
            ["cuda:1: there is no device 1", "found 0: Emulated device", "nvidia-smi -L"],
        ),
        (
            EmulatorSettings { capability: 75, ..EmulatorSettings::DEFAULT },
            "",
            ["is sm_75", "need sm_80 or newer", "another device"],
        ),
        (
            EmulatorSettings { refusal: Some(802), ..EmulatorSettings::DEFAULT },
            "",
            ["cuInit: CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager", "restart"],
        ),
        (
            EmulatorSettings { refusal: Some(803), ..EmulatorSettings::DEFAULT },
            "",
            ["SYSTEM_DRIVER_MISMATCH", "updated", "restart the machine"],
        ),
    ];
    for (settings, words, expected) in cases {
        let stderr = refusal(&mut setup.train(settings, words), 7);
        for word in expected {
            assert!(stderr.contains(word), "no {word} in: {stderr}");
        }
    }
}

/// Each library that is not there, under its own name and with its package.
#[test]
fn libraries_that_are_not_there_are_named() {
    let cases = [
        ("no-compiler", [EmulatedLibrary::Driver, EmulatedLibrary::Products], "nvidia-cuda-nvrtc"),
        ("no-products", [EmulatedLibrary::Driver, EmulatedLibrary::Compiler], "nvidia-cublas"),
    ];
    for (name, parts, package) in cases {
        let Some(setup) = DriverSetup::with(name, &parts) else { return };
        let mut command = setup.train(EmulatorSettings::DEFAULT, "--threads-only");
        if command.output().expect("it runs").status.success() {
            println!("skipped: this machine has the library itself");
            continue;
        }
        let stderr = refusal(&mut command, 7);
        for word in [package, "ZBELASTIC_CUDA_LIBS"] {
            assert!(stderr.contains(word), "no {word} in: {stderr}");
        }
    }
}

/// `doctor` reports the devices, and what is missing.
#[test]
fn the_doctor_names_devices_and_what_stands_in_their_way() {
    let Some(setup) = DriverSetup::new() else { return };
    let gpu = |settings| {
        let mut command = zbelastic(&["doctor"]);
        setup.toolkit.equip(command.current_dir(setup.folder.path()), settings);
        let output = text(&command.output().expect("it runs").stdout);
        let lines: Vec<&str> = output.lines().skip_while(|line| !line.contains(" gpu ")).collect();
        lines[..3].join(" ")
    };
    let two = gpu(EmulatorSettings { devices: 2, ..EmulatorSettings::DEFAULT });
    assert!(two.starts_with("ok ") && two.contains("cuda:1, Emulated device, sm_90"), "{two}");
    assert!(two.contains("GiB free; join --device cuda:0"), "{two}");
    let old = gpu(EmulatorSettings { driver: 12_040, ..EmulatorSettings::DEFAULT });
    assert!(old.starts_with("warning ") && old.contains("update the driver"), "{old}");
    let cards = gpu(EmulatorSettings { capability: 75, ..EmulatorSettings::DEFAULT });
    assert!(cards.contains("none can be used") && cards.contains("cuda:0: Emulated"), "{cards}");
}

/// A folder for kernels that is none costs time, and is warned of once.
#[test]
fn kernels_that_cannot_be_kept_are_a_warning() {
    let Some(setup) = DriverSetup::new() else { return };
    let words = "--threads-only --workers 2 --out ";
    let expected = digest(&mut setup.train(EmulatorSettings::DEFAULT, &format!("{words}kept")));
    let mut command = setup.train(EmulatorSettings::DEFAULT, &format!("{words}unkept"));
    let not_a_folder = setup.folder.path().join("text").join("kernels");
    command.env("ZBELASTIC_KERNEL_CACHE", &not_a_folder);
    let output = command.output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr.matches("compiled kernels are not kept").count(), 1, "{stderr}");
    assert!(stderr.contains("ZBELASTIC_KERNEL_CACHE"), "{stderr}");
    assert_eq!(
        digest(&mut setup.train(EmulatorSettings::DEFAULT, &format!("{words}again"))),
        expected
    );
}
