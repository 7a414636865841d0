//! Islands of a run, which train apart and exchange weights through folders.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_trainer::outer::{OuterConfig, OuterConfigError, OuterSchedule};

use super::key::Key;
use super::reader::SettingsReader;
use super::{CheckpointConfig, RunConfig};

/// One island of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncConfig {
    /// How islands train together.
    pub outer: OuterConfig,
    /// The folder or bucket of each island, in their order.
    pub folders: Vec<String>,
}

impl SyncConfig {
    /// The island that the settings describe; none if weights are never exchanged.
    pub(super) fn read(reader: &SettingsReader<'_>) -> Option<Self> {
        let every = reader.count(Key::SyncEvery);
        let folders = reader.texts(Key::SyncFolders);
        let number = |key| reader.number(key) as f32;
        let outer = OuterConfig {
            islands: folders.len() as u32,
            island: reader.size(Key::SyncIsland),
            every,
            fragments: reader.size(Key::SyncFragments),
            overlap: reader.count(Key::SyncOverlap),
            local_share: number(Key::SyncLocalShare),
            lr: number(Key::SyncLr),
            momentum: number(Key::SyncMomentum),
        };
        (every > 0).then_some(Self { outer, folders })
    }

    /// Whether each island has a folder of its own.
    pub(super) fn check_folders(&self) -> Result<(), OuterConfigError> {
        let folders = || (0..).zip(&self.folders);
        let same = folders().find_map(|(second, folder)| {
            let mut before = folders().take_while(|(first, _)| *first < second);
            before.find(|(_, other)| *other == folder).map(|(first, _)| (first, second))
        });
        match same {
            Some((first, second)) => Err(OuterConfigError::SameFolder { first, second }),
            None => Ok(()),
        }
    }
}

/// When weights are exchanged with other islands, if the run is one of several.
#[must_use]
pub fn outer_schedule(config: &RunConfig) -> Option<Arc<OuterSchedule>> {
    let outer = config.sync.as_ref()?.outer.clone();
    Some(Arc::new(OuterSchedule::new(outer, &config.model, config.steps)))
}

/// Rounds of each layer that an island of a cluster goes back over at most
/// ([`OuterConfig::rounds_kept`]).
#[must_use]
pub fn rounds_kept(config: &RunConfig) -> Option<u64> {
    let CheckpointConfig { every, keep_last, .. } = config.checkpoint;
    config.sync.as_ref()?.outer.rounds_kept(every, keep_last)
}
