//! The layers of checkpoints that are being made durable.

use std::collections::VecDeque;

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::session::WorkerEvent;
use zbelastic_types::{Digest, Generation, LayerId, Step};

use crate::elastic::LayerImage;

/// Checkpoints being written at once; another one is left out, unless its version is still the
/// sealed one when a write has ended.
const WRITES_MAX: usize = 2;

/// Layers of a version that are being made durable.
struct LayerWrites {
    version: Step,
    generation: Generation,
    /// The layers, and the digest of each that is durable.
    layers: Vec<(LayerId, Option<Digest>)>,
    busy_milliticks: u32,
}

impl LayerWrites {
    /// The digests of all layers, if all are durable.
    fn digests(&self) -> Option<Vec<LayerDigest>> {
        self.layers.iter().map(|(layer, durable)| Some((*layer, (*durable)?))).collect()
    }
}

/// How far a version is written after one of its layers.
pub(super) enum WriteProgress {
    /// Other layers are being written, or the version is not.
    Waiting,
    /// A layer could not be written, and so the version is not durable.
    Failed,
    /// All layers are durable: the event that reports them.
    Saved(WorkerEvent),
}

/// The checkpoints that a worker writes.
#[derive(Default)]
pub(super) struct CheckpointWrites {
    writing: VecDeque<LayerWrites>,
    /// The version whose write was deferred, because as many were under way as may be.
    deferred: Option<Step>,
}

impl CheckpointWrites {
    /// Whether a version can be written now; if not, it is deferred.
    pub(super) fn admit(&mut self, version: Step) -> bool {
        // A write under way before a rewind came to this version again is not reported any more.
        self.writing.retain(|writing| writing.version != version);
        let has_space = self.writing.len() < WRITES_MAX;
        if !has_space {
            self.deferred = Some(version);
        }
        has_space
    }

    /// These layers of a version are written from now on.
    pub(super) fn begin(&mut self, version: Step, generation: Generation, images: &[LayerImage]) {
        let layers = images.iter().map(|image| (image.layer, None)).collect();
        self.writing.push_back(LayerWrites { version, generation, layers, busy_milliticks: 0 });
    }

    /// Writing a version kept the device from computing for so long.
    pub(super) fn count_busy(&mut self, version: Step, milliticks: u32) {
        if let Some(writing) = self.writing.iter_mut().find(|writing| writing.version == version) {
            writing.busy_milliticks = writing.busy_milliticks.saturating_add(milliticks);
        }
    }

    /// A layer is durable, or could not be written.
    pub(super) fn finish_layer(
        &mut self,
        written: (Step, Generation),
        layer: LayerId,
        durable: Option<Digest>,
    ) -> WriteProgress {
        // A layer written before a rewind came to this version again is of another plan.
        let is_it = |writing: &LayerWrites| (writing.version, writing.generation) == written;
        let Some(position) = self.writing.iter().position(is_it) else {
            return WriteProgress::Waiting;
        };
        let writing = &mut self.writing[position];
        let Some(found) = writing.layers.iter_mut().find(|(of, _)| *of == layer) else {
            return WriteProgress::Waiting;
        };
        found.1 = durable;
        let digests = writing.digests();
        if durable.is_some() && digests.is_none() {
            return WriteProgress::Waiting;
        }
        let LayerWrites { version, generation, busy_milliticks, .. } =
            self.writing.remove(position).expect("found above");
        match digests {
            Some(layers) => WriteProgress::Saved(WorkerEvent::Saved {
                version,
                generation,
                layers,
                busy_milliticks,
            }),
            None => WriteProgress::Failed,
        }
    }

    /// The version that was deferred, if nothing was since.
    pub(super) fn take_deferred(&mut self) -> Option<Step> {
        self.deferred.take()
    }

    /// Writes that are under way are not reported.
    pub(super) fn forget(&mut self) {
        self.writing.clear();
    }
}
