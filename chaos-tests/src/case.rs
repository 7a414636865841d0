//! A life that can be lived again.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zbelastic_trainer::plan::LaneError;

use crate::faults::{TimedFault, draw_faults};
use crate::options::{ComputeModelKind, LifeOptions, OP_US_LEAST};

/// The version of the file.
const FORMAT_VERSION: u32 = 1;
/// The duration of the shortest sync of a disk.
const SYNC_US_LEAST: u64 = 200;

/// The inputs of a life: with the same case it is the same life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeCase {
    /// The version of the file.
    pub format: u32,
    /// The seed of everything that is not written out here.
    pub seed: u64,
    /// The options of the life.
    pub options: LifeOptions,
    /// The faults, in order.
    pub faults: Vec<TimedFault>,
}

/// A seed that is to be lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeTicket {
    /// The seed from which the case of the life is drawn.
    pub seed: u64,
    /// The compute model of the life.
    pub model: ComputeModelKind,
}

impl LifeTicket {
    /// The case that it is lived from.
    #[must_use]
    pub fn case(self) -> LifeCase {
        LifeCase::draw(self.seed, self.model)
    }

    /// The name of the file that its failure is written to.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("seed-{}-{}.json", self.seed, self.model_name())
    }

    const fn model_name(self) -> &'static str {
        match self.model {
            ComputeModelKind::Digest => "digest",
            ComputeModelKind::Float => "float",
        }
    }
}

impl fmt::Display for LifeTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} {}", self.seed, self.model_name())
    }
}

/// Why a case cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// It holds no case.
    #[error("{path}: not a case of a chaos run: {source}")]
    Form {
        /// Path of the file.
        path: String,
        /// The error of the JSON reader.
        source: serde_json::Error,
    },
    /// Another version of the program wrote it.
    #[error("{path}: format {found}, this program reads {FORMAT_VERSION}")]
    Version {
        /// Path of the file.
        path: String,
        /// The format version found in the file.
        found: u32,
    },
    /// The life has lanes that its step or its schedule cannot have.
    #[error("{path}: {source}")]
    Lanes {
        /// Path of the file.
        path: String,
        /// Why it cannot have them.
        source: LaneError,
    },
    /// A life cannot be lived with these options.
    #[error("{path}: `{option}` of a life cannot be {value}, which is below {least}")]
    Option {
        /// Path of the file.
        path: String,
        /// Name of the option.
        option: &'static str,
        /// The value in the file.
        value: u64,
        /// The least there may be.
        least: u64,
    },
}

/// The fields that files of all versions have.
#[derive(Deserialize)]
struct CaseHeader {
    format: u32,
}

impl LifeCase {
    /// The case of a seed.
    #[must_use]
    pub fn draw(seed: u64, model: ComputeModelKind) -> Self {
        Self::of(seed, LifeOptions::draw(seed, model))
    }

    /// The life of a seed with so many workers.
    #[must_use]
    pub fn draw_with(seed: u64, model: ComputeModelKind, workers: u32) -> Self {
        let mut options = LifeOptions::draw(seed, model);
        options.enlarge(workers);
        Self::of(seed, options)
    }

    fn of(seed: u64, options: LifeOptions) -> Self {
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
        let form_error = |source| CaseError::Form { path: name(), source };
        let header: CaseHeader = serde_json::from_str(&text).map_err(form_error)?;
        if header.format != FORMAT_VERSION {
            return Err(CaseError::Version { path: name(), found: header.format });
        }
        let case: Self = serde_json::from_str(&text).map_err(form_error)?;
        case.check(path)?;
        Ok(case)
    }

    /// Whether a life can begin with these options: a file may have been written by hand.
    fn check(&self, path: &Path) -> Result<(), CaseError> {
        let LifeOptions { controllers, workers, blocks, microbatches, .. } = self.options;
        let LifeOptions { steps, storm_us, op_us_max, sync_us_max, kind, .. } = self.options;
        let network = &self.options.network;
        let leasts = [
            ("controllers", controllers.into(), 1),
            ("workers", workers.into(), 1),
            ("blocks", blocks.into(), 1),
            ("microbatches", microbatches.into(), 1),
            ("steps", steps, 1),
            ("checkpoint_every", self.options.checkpoint_every, 1),
            ("checkpoints_kept", self.options.checkpoints_kept.into(), 1),
            ("op_us_max", op_us_max, OP_US_LEAST),
            ("sync_us_max", sync_us_max, SYNC_US_LEAST),
            ("storm_us", storm_us, 1),
            ("delay_us_max", network.delay_us_max, network.delay_us_min),
        ];
        let name = || path.display().to_string();
        if let Some((option, value, least)) =
            leasts.into_iter().find(|(_, value, least)| value < least)
        {
            return Err(CaseError::Option { path: name(), option, value, least });
        }
        let batch = self.options.batch();
        let replicas = batch.of_replica(kind, self.options.replicas);
        let lanes = batch.check_lanes(kind).and(replicas.map(|_| ()));
        lanes.map_err(|source| CaseError::Lanes { path: name(), source })
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

#[cfg(test)]
mod tests {
    use zbelastic_schedule::ScheduleKind;
    use zbelastic_trainer::plan::{LaneCount, ReplicaCount};

    use super::*;

    #[test]
    fn a_case_with_lanes_that_cannot_be_is_refused() {
        let check = |lanes, microbatches, kind, is_legal: bool| {
            let mut case = LifeCase::draw(1, ComputeModelKind::Digest);
            case.options.lanes = LaneCount::new(lanes).expect("a power of two");
            case.options.microbatches = microbatches;
            case.options.kind = kind;
            case.options.replicas = ReplicaCount::ONE;
            match case.check(Path::new("case.json")) {
                Ok(()) => assert!(is_legal),
                Err(CaseError::Lanes { .. }) => assert!(!is_legal),
                Err(error) => panic!("{error}"),
            }
        };
        check(2, 4, ScheduleKind::Chimera, true);
        check(2, 3, ScheduleKind::ZbH1, false);
        check(1, 4, ScheduleKind::ZbH1, true);
        check(1, 4, ScheduleKind::Chimera, false);
    }
}
