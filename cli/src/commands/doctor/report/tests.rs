//! The text and the object of a machine, whole.

use super::{DoctorFinding, Obstacle, Severity, json, obstacle, text};
use crate::commands::doctor::DoctorCheck;

fn mixed() -> Vec<DoctorFinding> {
    vec![
        DoctorFinding::fine(DoctorCheck::Cores, "8 cores"),
        DoctorFinding::new(
            DoctorCheck::Gpu,
            Severity::Note,
            "/dev/nvidia0 visible, and no driver finds it",
        )
        .why("libcuda.so belongs to the driver"),
        DoctorFinding::new(DoctorCheck::OpenFiles, Severity::Warning, "256 may be open at once")
            .why("log, checkpoints and connections need up to 1024")
            .hint("ulimit -n 1024"),
        DoctorFinding::new(
            DoctorCheck::DiskSpace,
            Severity::Error(Obstacle::TooLittle),
            "12.0 MiB free",
        )
        .hint("free some, or another --data-dir"),
    ]
}

#[test]
fn a_person_reads_a_line_each_and_what_to_do() {
    let expected = "\
ok       cores          8 cores
note     gpu            /dev/nvidia0 visible, and no driver finds it
  why: libcuda.so belongs to the driver
warning  open-files     256 may be open at once
  why: log, checkpoints and connections need up to 1024
  try: ulimit -n 1024
error    disk-space     12.0 MiB free
  try: free some, or another --data-dir

this machine cannot be a node: 1 error, 1 warning, 1 note
";
    assert_eq!(text(&mixed()), expected);
    let expected = "\
ok       cores          8 cores

this machine can be a node: no errors, no warnings, no notes
";
    assert_eq!(text(&mixed()[..1]), expected);
    let twice = [mixed(), mixed()].concat();
    let last = "\nthis machine cannot be a node: 2 errors, 2 warnings, 2 notes\n";
    assert!(text(&twice).ends_with(last));
}

#[test]
fn a_script_reads_the_same() {
    let expected = r#"{
  "counts": {
    "errors": 1,
    "notes": 0,
    "warnings": 0
  },
  "findings": [
    {
      "check": "disk-space",
      "level": "error",
      "try": "free some, or another --data-dir",
      "what": "12.0 MiB free",
      "why": null
    }
  ],
  "ok": false
}
"#;
    assert_eq!(json(&mixed()[3..]), expected);
    assert!(json(&mixed()[..3]).contains("\"ok\": true"));
}

#[test]
fn only_errors_stand_in_the_way_and_too_little_comes_first() {
    let error =
        |obstacle| DoctorFinding::new(DoctorCheck::Clock, Severity::Error(obstacle), "wrong");
    assert_eq!(obstacle(&mixed()[..3]), None);
    assert_eq!(obstacle(&[error(Obstacle::WrongState)]), Some(Obstacle::WrongState));
    let both = [error(Obstacle::WrongState), error(Obstacle::TooLittle)];
    assert_eq!(obstacle(&both), Some(Obstacle::TooLittle));
}
