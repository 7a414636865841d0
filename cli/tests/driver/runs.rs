//! Whole runs through the driver.

use zbelastic_emulator::{EmulatorSettings, ExecutionOrder};

use crate::common::refusal;
use crate::{DriverSetup, digest};

const TWO: EmulatorSettings =
    EmulatorSettings { devices: 2, order: ExecutionOrder::Lazy, ..EmulatorSettings::DEFAULT };
const DRAWN: EmulatorSettings = EmulatorSettings {
    order: ExecutionOrder::Random { seed: 3 },
    is_backwards: true,
    ..EmulatorSettings::DEFAULT
};

/// One worker that does everything at once, and pipelines in threads and processes on machines that
/// do it as late as they may, or in an order drawn by chance.
#[test]
fn runs_end_with_the_bits_of_one_worker_in_both_precisions() {
    let Some(setup) = DriverSetup::new() else { return };
    for precision in ["f32", "bf16"] {
        let set = format!("--set train.precision={precision}");
        let run = |settings, out: &str, words: &str| {
            digest(&mut setup.train(settings, &format!("{set} --out {precision}-{out} {words}")))
        };
        let expected = run(EmulatorSettings::DEFAULT, "one", "--threads-only --workers 1");
        let pipelines = [
            (TWO, "h1", "--threads-only --workers 3 --schedule zb-h1 --device cuda:0,cuda:1"),
            (DRAWN, "v", "--workers 3 --schedule zb-v"),
            (TWO, "half", "--threads-only --workers 2 --schedule po-half"),
            (DRAWN, "again", "--threads-only --workers 2 --set memory.recompute=full"),
        ];
        for (settings, out, words) in pipelines {
            assert_eq!(run(settings, out, words), expected, "{precision} {words}");
        }
    }
}

/// Versions of weights lie on the device; when its streams carry out what was enqueued changes none
/// of them.
#[test]
fn asynchronous_runs_have_the_same_bits_whenever_work_is_done() {
    let Some(setup) = DriverSetup::new() else { return };
    for schedule in ["pipedream-2bw", "pipemare"] {
        let words = format!("--threads-only --workers 2 --schedule {schedule} --out {schedule}");
        let expected = digest(&mut setup.train(EmulatorSettings::DEFAULT, &words));
        let lazy = EmulatorSettings { order: ExecutionOrder::Lazy, ..EmulatorSettings::DEFAULT };
        assert_eq!(digest(&mut setup.train(lazy, &format!("{words}-late"))), expected);
    }
}

/// A device that gives up in the middle ends the run, and a run that goes on elsewhere has lost
/// nothing.
#[test]
fn what_a_broken_device_leaves_is_gone_on_with() {
    let Some(setup) = DriverSetup::new() else { return };
    let expected = digest(
        &mut setup.train(EmulatorSettings::DEFAULT, "--out whole --threads-only --workers 1"),
    );
    let broken = EmulatorSettings { faulty_launch: Some(150), ..EmulatorSettings::DEFAULT };
    let stderr = refusal_of(&setup, broken, "--out threads --threads-only --workers 2");
    for word in ["cuda:0: ", "CUDA_ERROR_ILLEGAL_ADDRESS", "restart this process", "Xid"] {
        assert!(stderr.contains(word), "no {word} in: {stderr}");
    }
    assert!(!stderr.contains("report it"), "{stderr}");
    let words = "--out processes --workers 2";
    let stderr = refusal_of(&setup, broken, words);
    assert!(
        stderr.contains("ends again and again") && stderr.contains("failed in an earlier"),
        "{stderr}"
    );
    assert_eq!(digest(&mut setup.train(EmulatorSettings::DEFAULT, words)), expected);
}

fn refusal_of(setup: &DriverSetup, settings: EmulatorSettings, words: &str) -> String {
    let output = setup.train(settings, words).output().expect("it runs");
    assert!(!output.status.success(), "{words}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A device with too little memory is refused before anything is trained.
#[test]
fn a_run_that_does_not_fit_says_what_would() {
    let Some(setup) = DriverSetup::new() else { return };
    let small = EmulatorSettings { memory_mib: 160, ..EmulatorSettings::DEFAULT };
    let words = "--threads-only --workers 1 --set model.width=512";
    let stderr = refusal(&mut setup.train(small, words), 7);
    for word in ["does not fit cuda:0", "MiB are free"] {
        assert!(stderr.contains(word), "no {word} in: {stderr}");
    }
}
