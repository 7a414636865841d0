//! Event files read back by TensorBoard itself, where its Python package is installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use zbelastic_view::tensorboard::{first_record, histogram_record, scalars_record, text_record};

const READ: &str = "\
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    for scalar in events.Scalars(tag):
        print(tag, scalar.step, round(scalar.wall_time, 3), round(scalar.value, 6))
for tag in events.Tags()['tensors']:
    for event in events.Tensors(tag):
        plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
        print(tag, event.step, plugin, event.tensor_proto.string_val[0].decode())
for tag in events.Tags()['histograms']:
    for event in events.Histograms(tag):
        value = event.histogram_value
        print(tag, event.step, value.min, value.max, value.num, value.sum, sum(value.bucket))
";

/// A Python that has TensorBoard.
///
/// # Panics
/// If there is none though `ZBELASTIC_TOOLS_REQUIRED` says that all tools are there.
#[expect(clippy::disallowed_methods, reason = "the package reads no environment, its tests may")]
fn python_with_tensorboard() -> Option<String> {
    let python = std::env::var("ZBELASTIC_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let imported = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if imported.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let is_required = std::env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_some();
    assert!(!is_required, "{python} has no package tensorboard");
    None
}

#[test]
fn tensorboard_reads_what_was_written() {
    let Some(python) = python_with_tensorboard() else {
        println!("skipped: no Python with the package tensorboard");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tensorboard");
    fs::create_dir_all(&folder).expect("a folder");
    let mut bytes = first_record(1_500);
    bytes.extend(scalars_record(2_000, 1, &[("loss/train", 3.25), ("gradient/norm", 0.5)]));
    bytes.extend(scalars_record(2_500, 300, &[("loss/train", 2.5)]));
    bytes.extend(text_record(2_500, 0, ("run/config", "steps = 300")));
    let norms = [0.5, 1.0, 2.0, 2.5];
    bytes.extend(histogram_record(2_500, 300, ("gradient/norms", &norms)).expect("values"));
    let path = folder.join("events.out.tfevents.0000000001.0.zbelastic");
    fs::write(&path, bytes).expect("it is written");
    let output = Command::new(&python).args(["-c", READ]).arg(&path).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "gradient/norm 1 2.0 0.5\nloss/train 1 2.0 3.25\nloss/train 300 2.5 2.5\n\
                    run/config 0 text steps = 300\n\
                    gradient/norms 300 0.5 2.5 4.0 6.0 4.0\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
