//! The scalars of a run for TensorBoard, its configuration as a text, and histograms of its gradient
//! norms: one event file each time that the command runs, and another when it is long, in one folder,
//! which TensorBoard reads as one run. The oldest are removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_view::tensorboard::{first_record, histogram_record, scalars_record, text_record};

use super::events::NORM_TAG;
use crate::run_files::{CONFIG, METRICS_BYTES_MAX, SCALARS_BYTES_MAX, TENSORBOARD};

/// Bytes of scalars after which another file begins.
const FILE_BYTES_MAX: u64 = METRICS_BYTES_MAX;
/// Steps of a histogram.
const HISTOGRAM_STEPS: usize = 100;

/// An event file that grows with the run.
#[derive(Debug)]
pub struct ScalarLog {
    run: PathBuf,
    path: PathBuf,
    file: File,
    /// Bytes of the scalars in it.
    bytes: u64,
    /// Norms since the last histogram.
    norms: Vec<f64>,
}

impl ScalarLog {
    /// Makes a file in the run folder, named after the time as TensorBoard sorts them.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(run: &Path, at_ms: u64) -> io::Result<Self> {
        let folder = run.join(TENSORBOARD);
        fs::create_dir_all(&folder)?;
        let name = format!("events.out.tfevents.{:010}.{}.zbelastic", at_ms / 1000, at_ms % 1000);
        let path = folder.join(name);
        remove_oldest(&folder, SCALARS_BYTES_MAX - FILE_BYTES_MAX);
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.write_all(&first_record(at_ms))?;
        // A run without the file trains as well.
        if let Ok(config) = fs::read_to_string(run.join(CONFIG)) {
            let text = format!("```toml\n{config}```\n");
            file.write_all(&text_record(at_ms, 0, ("run/config", &text)))?;
        }
        Ok(Self { run: run.to_owned(), path, file, bytes: 0, norms: Vec::new() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the scalars of a step that are finite. They are with the system when this returns.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append(&mut self, at_ms: u64, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        if self.bytes > FILE_BYTES_MAX {
            let norms = std::mem::take(&mut self.norms);
            *self = Self { norms, ..Self::create(&self.run, at_ms)? };
        }
        let finite = scalars.iter().filter(|(_, scalar)| scalar.is_finite()).copied();
        let finite: Vec<_> = finite.collect();
        let norms = finite.iter().filter(|(tag, _)| *tag == NORM_TAG);
        self.norms.extend(norms.map(|(_, norm)| norm));
        let mut records = scalars_record(at_ms, step, &finite);
        if self.norms.len() >= HISTOGRAM_STEPS {
            let histogram = histogram_record(at_ms, step, ("gradient/norms", &self.norms));
            records.extend(histogram.into_iter().flatten());
            self.norms.clear();
        }
        self.bytes += records.len() as u64;
        self.file.write_all(&records)
    }
}

/// Removes the oldest event files, until the others have at most so many bytes.
fn remove_oldest(folder: &Path, bytes_max: u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let is_ours = entry.file_name().to_str()?.ends_with(".zbelastic");
        is_ours.then_some((entry.path(), entry.metadata().ok()?.len()))
    });
    let mut files: Vec<_> = names.collect();
    // They are named after the time.
    files.sort();
    let mut kept = 0;
    for (path, bytes) in files.iter().rev() {
        kept += bytes;
        if kept > bytes_max {
            // One that stays is removed with the next.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_event_files_go_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = |at: u64| format!("events.out.tfevents.{at:010}.5.zbelastic");
        for at in [90, 100, 110, 120] {
            fs::write(folder.path().join(name(at)), [0; 10]).expect("room");
        }
        fs::write(folder.path().join("events.out.tfevents.0.other"), [0; 99]).expect("room");
        let left = || {
            let entries = fs::read_dir(folder.path()).expect("readable").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names.into_iter().filter_map(|name| name.into_string().ok()).collect::<Vec<_>>()
        };
        remove_oldest(folder.path(), 40);
        assert_eq!(left().len(), 5);
        remove_oldest(folder.path(), 25);
        let expected = ["events.out.tfevents.0.other".to_owned(), name(110), name(120)];
        assert_eq!(left(), expected);
    }
}
