//! The scalars of a run for TensorBoard, its configuration as a text, and histograms of its gradient
//! norms: one event file each time that the command runs, in one folder, which TensorBoard reads as
//! one run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_view::tensorboard::{first_record, histogram_record, scalars_record, text_record};

use super::events::NORM_TAG;
use crate::run_files::{CONFIG, TENSORBOARD};

/// Steps of a histogram.
const HISTOGRAM_STEPS: usize = 100;

/// An event file that grows with the run.
#[derive(Debug)]
pub struct ScalarLog {
    path: PathBuf,
    file: File,
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
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.write_all(&first_record(at_ms))?;
        // A run without the file trains as well.
        if let Ok(config) = fs::read_to_string(run.join(CONFIG)) {
            let text = format!("```toml\n{config}```\n");
            file.write_all(&text_record(at_ms, 0, ("run/config", &text)))?;
        }
        Ok(Self { path, file, norms: Vec::new() })
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
        self.file.write_all(&records)
    }
}
