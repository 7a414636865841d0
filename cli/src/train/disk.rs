//! Whether a disk holds the files that a run writes, checked before it begins: checkpoints that do
//! not fit would end it hours later.

use std::path::{Path, PathBuf};

use zbelastic_config::RunConfig;
use zbelastic_machine::disk_space;
use zbelastic_trainer::elastic::image_bytes;
use zbelastic_trainer::model::{model_layers, model_size};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::run_devices::DeviceSharing;

/// Bytes of a weight in the model that a run leaves behind.
const MODEL_BYTES_PER_WEIGHT: u64 = 4;

/// The bytes that a run of so many workers writes, all of them on one disk: checkpoints with their
/// copies, and the model behind the last one.
fn needed(config: &RunConfig, worker_count: u32, sharing: DeviceSharing) -> (Bytes, u64) {
    let (_, weights) = model_size(&config.model);
    let model = MODEL_BYTES_PER_WEIGHT * weights;
    let checkpoint_count = match sharing {
        DeviceSharing::Threads => 0,
        // One more is written before the oldest goes, and no step has two.
        DeviceSharing::Processes => (u64::from(config.checkpoint.keep_last) + 1).min(config.steps),
    };
    let times = 1 + u64::from(config.checkpoint.copies.min(worker_count));
    let layers = model_layers(&config.model);
    let checkpoint: u64 = layers.iter().map(|layer| image_bytes(layer.state_len())).sum();
    (Bytes(checkpoint_count * times * checkpoint + model), checkpoint_count)
}

/// Checks that a run's files fit the disk of its folder.
///
/// # Errors
/// If they do not, with a remedy.
pub fn check_disk(
    folder: &Path,
    config: &RunConfig,
    worker_count: u32,
    sharing: DeviceSharing,
) -> Result<(), CommandFailure> {
    let (needed, checkpoint_count) = needed(config, worker_count, sharing);
    // A relative folder is seen from each node's own, which lies in the run's.
    let path = config.checkpoint.folder.as_ref().map_or(folder.to_owned(), |dir| folder.join(dir));
    let path = existing(&path);
    // A disk with unreadable free space is not refused: the first checkpoint will show.
    match disk_space(&path) {
        Ok((free, _)) if free < needed => {
            Err(failure(&path, (needed, free), (checkpoint_count, config)))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The folder, or the nearest one above it that is there.
fn existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find(|above| above.exists());
    found.filter(|found| !found.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn failure(
    path: &Path,
    (needed, free): (Bytes, Bytes),
    (checkpoint_count, config): (u64, &RunConfig),
) -> CommandFailure {
    let what = format!("the disk at {} does not hold this run", path.display());
    let mut failure = CommandFailure::new(FailureCode::OutOfResource, what);
    let copies = config.checkpoint.copies;
    let detail = FailureDetail::new(format!("it writes up to {needed}, {free} are free"))
        .why(format!(
            "{checkpoint_count} checkpoints of weights and moments, each piece on {copies} more nodes, and the model"
        ))
        .hint(
            "another --out; or --set checkpoint.keep_last=1, --set checkpoint.copies=0, or \
             --set checkpoint.dir=FOLDER on another disk",
        );
    failure.details = vec![detail];
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_config::load_document;

    fn config(more: &str) -> RunConfig {
        let toml =
            format!("[model]\npreset = \"tiny\"\n[train]\nsteps = 100\n[checkpoint]\n{more}");
        load_document("test", &toml).expect("legal").config
    }

    #[test]
    fn checkpoints_count_with_their_copies_and_one_that_is_being_written() {
        let bytes =
            |more: &str, workers| needed(&config(more), workers, DeviceSharing::Processes).0.0;
        let model = needed(&config(""), 4, DeviceSharing::Threads).0.0;
        let one = bytes("keep_last = 1\ncopies = 0", 4) - model;
        assert_eq!(bytes("keep_last = 1\ncopies = 1", 4) - model, 2 * one);
        assert_eq!(bytes("keep_last = 3\ncopies = 1", 4) - model, 4 * one);
        let (_, weights) = model_size(&config("").model);
        assert!(one > 2 * 12 * weights && one < 2 * 13 * weights, "{one}");
        let frozen = bytes("keep_last = 1\ncopies = 0\n[lora]\nrank = 1", 4) - model;
        assert!(frozen > 2 * 4 * weights && frozen < 2 * 5 * weights, "{frozen}");
    }

    #[test]
    fn a_disk_without_space_is_refused_with_what_helps() {
        let config = config("keep_last = 3");
        let numbers = (Bytes(4 << 30), Bytes(1 << 30));
        let failure = failure(Path::new("/small"), numbers, (4, &config));
        assert_eq!(failure.code, FailureCode::OutOfResource);
        let text = failure.to_string();
        for word in ["/small", "4.00 GiB", "1.00 GiB are free", "checkpoint.keep_last=1", "--out"] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_yet_lies_on_the_disk_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(existing(&root.path().join("a/b")), root.path());
        assert_eq!(existing(Path::new("not/there")), Path::new("."));
    }
}
