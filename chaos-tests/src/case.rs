//! A life that can be lived again.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::faults::{TimedFault, draw_faults};
use crate::options::{Model, Options};

/// The version of the file.
const FORMAT_VERSION: u32 = 1;

/// What a life is lived from: with the same case it is the same life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The version of the file.
    pub format: u32,
    /// The seed of everything that is not written out here.
    pub seed: u64,
    /// The options.
    pub options: Options,
    /// The faults, in order.
    pub faults: Vec<TimedFault>,
}

/// Why a case cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It holds no case.
    #[error("{path}: not a case of a chaos run: {source}")]
    Form {
        /// The file.
        path: String,
        /// Why.
        source: serde_json::Error,
    },
    /// Another version of the program wrote it.
    #[error("{path}: format {found}, this program reads {FORMAT_VERSION}")]
    Version {
        /// The file.
        path: String,
        /// The version found.
        found: u32,
    },
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn draw(seed: u64, model: Model) -> Self {
        let options = Options::draw(seed, model);
        let faults = draw_faults(seed, &options);
        Self { format: FORMAT_VERSION, seed, options, faults }
    }

    /// Reads a case.
    ///
    /// # Errors
    /// If the file cannot be read or holds something else.
    pub fn load(path: &Path) -> Result<Self, CaseError> {
        let name = || path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|source| CaseError::File { path: name(), source })?;
        let case: Self = serde_json::from_str(&text)
            .map_err(|source| CaseError::Form { path: name(), source })?;
        if case.format != FORMAT_VERSION {
            return Err(CaseError::Version { path: name(), found: case.format });
        }
        Ok(case)
    }

    /// Writes a case.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// Never: a case is plain data.
    pub fn save(&self, path: &Path) -> Result<(), CaseError> {
        let text = serde_json::to_string_pretty(self).expect("a case is plain data");
        let file_error = |source| CaseError::File { path: path.display().to_string(), source };
        fs::write(path, text + "\n").map_err(file_error)
    }
}
