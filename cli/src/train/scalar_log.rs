//! The scalars of a run for TensorBoard: one event file each time that the command runs, in one
//! folder, which TensorBoard reads as one run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_view::tensorboard::{first_record, scalars_record};

use crate::run_files::TENSORBOARD;

/// An event file that grows with the run.
#[derive(Debug)]
pub struct ScalarLog {
    path: PathBuf,
    file: File,
}

impl ScalarLog {
    /// Makes a file in the run folder, named after the time as TensorBoard sorts them.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(folder: &Path, at_ms: u64) -> io::Result<Self> {
        let folder = folder.join(TENSORBOARD);
        fs::create_dir_all(&folder)?;
        let name = format!("events.out.tfevents.{:010}.{}.zbelastic", at_ms / 1000, at_ms % 1000);
        let path = folder.join(name);
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.write_all(&first_record(at_ms))?;
        Ok(Self { path, file })
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
        self.file.write_all(&scalars_record(at_ms, step, &finite.collect::<Vec<_>>()))
    }
}
