//! Blobs that this process offers to others over the bulk lane: layers for a plan, pieces of
//! checkpoints, text. The event loop adds to it, transport's tasks read them; that is all its lock
//! is for.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, RwLock};

use zbelastic_trainer::elastic::{LayerImage, image_bytes};
use zbelastic_transport::BulkBody;
use zbelastic_types::{Generation, Step};
use zbelastic_wire::{BulkKey, PieceRef};

/// Layers offered at once: as many as a model may have, for the plan under way and the one before,
/// or of the last checkpoint.
const LAYERS_MAX: usize = 2048;

/// Finds blobs that are not in the registry itself, by name: pieces of checkpoints in the store.
pub type FindStoredBlob = Box<dyn Fn(&BulkKey) -> Option<Arc<dyn BulkBody>> + Send + Sync>;

/// The offered blobs. Cheap to clone.
#[derive(Clone)]
pub struct BlobRegistry {
    layers: Arc<RwLock<BTreeMap<BulkKey, Arc<dyn BulkBody>>>>,
    stored: Arc<FindStoredBlob>,
}

impl BlobRegistry {
    /// A registry that offers nothing yet, in front of a store.
    #[must_use]
    pub fn new(stored: FindStoredBlob) -> Self {
        Self { layers: Arc::default(), stored: Arc::new(stored) }
    }

    /// Offers a blob under a key. Beyond the limit the oldest plan's layers go first.
    ///
    /// # Panics
    /// If a thread that held the lock panicked.
    pub fn offer(&self, key: BulkKey, body: Arc<dyn BulkBody>) {
        let mut layers = self.layers.write().expect("no thread panics while it holds the lock");
        layers.insert(key, body);
        while layers.len() > LAYERS_MAX {
            layers.pop_first();
        }
    }

    /// Offers a piece of the checkpoint after the last step, version `last`, until it is withdrawn;
    /// others are read from the store. No COMMIT changes these weights, so none is copied for it.
    ///
    /// # Panics
    /// If a thread that held the lock panicked.
    pub fn offer_last(&self, last: Step, piece: PieceRef, body: &Arc<LayerBody>) {
        if piece.version >= last {
            self.offer(BulkKey::Piece(piece), body.clone());
        }
    }

    /// Withdraws the layers that were offered for plans before this one.
    ///
    /// # Panics
    /// If a thread that held the lock panicked.
    pub fn clear_before(&self, now: Generation) {
        let mut layers = self.layers.write().expect("no thread panics while it holds the lock");
        layers.retain(|key, _| match key {
            BulkKey::Layer { generation, .. } => *generation >= now,
            BulkKey::Piece(_) | BulkKey::Data(_) => true,
        });
    }

    /// Withdraws the blob that was offered under this name.
    ///
    /// # Panics
    /// If a thread that held the lock panicked.
    pub fn withdraw(&self, key: &BulkKey) {
        self.layers.write().expect("no thread panics while it holds the lock").remove(key);
    }

    /// The blob that is offered under this name.
    ///
    /// # Panics
    /// If a thread that held the lock panicked.
    #[must_use]
    pub fn find(&self, key: &BulkKey) -> Option<Arc<dyn BulkBody>> {
        let layers = self.layers.read().expect("no thread panics while it holds the lock");
        let found = layers.get(key).cloned();
        drop(layers);
        found.or_else(|| (self.stored)(key))
    }
}

/// A layer as it travels, read where it lies.
#[derive(Debug)]
pub struct LayerBody {
    image: Arc<LayerImage>,
    header: Vec<u8>,
}

impl LayerBody {
    /// The body of a layer.
    #[must_use]
    pub fn new(image: Arc<LayerImage>) -> Self {
        Self { header: image.header().to_vec(), image }
    }
}

impl BulkBody for LayerBody {
    fn len(&self) -> u64 {
        image_bytes(self.image.state_len())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let LayerImage { w, m, v, .. } = &*self.image;
        let mut at = offset as usize;
        let mut left = into;
        for part in [self.header.as_slice(), floats(w), floats(m), floats(v)] {
            if at >= part.len() {
                at -= part.len();
                continue;
            }
            let count = left.len().min(part.len() - at);
            let (now, later) = left.split_at_mut(count);
            now.copy_from_slice(&part[at..at + count]);
            (left, at) = (later, 0);
        }
        if left.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Reads a body from its beginning to its end.
pub struct BodyReader<'a> {
    body: &'a dyn BulkBody,
    at: u64,
}

impl<'a> BodyReader<'a> {
    /// A reader at the beginning of the blob.
    #[must_use]
    pub const fn new(body: &'a dyn BulkBody) -> Self {
        Self { body, at: 0 }
    }
}

impl io::Read for BodyReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.body.len() - self.at;
        let count = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        self.body.read(self.at, &mut into[..count])?;
        self.at += count as u64;
        Ok(count)
    }
}

fn floats(floats: &[f32]) -> &[u8] {
    bytemuck::cast_slice(floats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_types::{Digest, LayerId, RunId};

    #[test]
    fn pieces_of_the_last_checkpoint_are_read_from_memory_until_they_are_withdrawn() {
        let registry = BlobRegistry::new(Box::new(|_| None));
        let layer = LayerId(3);
        let floats = || vec![0.5; 5].into();
        let piece = |version| {
            let digest = Digest([7; 32]);
            let image = LayerImage { layer, version, w: floats(), m: floats(), v: floats() };
            let body = Arc::new(LayerBody::new(Arc::new(image)));
            let piece = PieceRef { run: RunId(1), version, layer, digest, length: body.len() };
            registry.offer_last(Step(10), piece, &body);
            BulkKey::Piece(piece)
        };
        let before = piece(Step(9));
        let last = piece(Step(10));
        let found = |key| registry.find(key).map(|body| body.len());
        assert_eq!(found(&before), None, "it is read from the store");
        assert!(found(&last).is_some());
        registry.clear_before(Generation(9));
        assert!(found(&last).is_some(), "plans do not withdraw it");
        registry.withdraw(&last);
        assert_eq!(found(&last), None);
    }

    #[test]
    fn layer_is_read_anywhere_as_it_is_encoded() {
        // Frozen tensors have no moments.
        [5, 2, 0].into_iter().for_each(check_read);
    }

    fn check_read(moments: u32) {
        let floats = |start: u32, len| (start..start + len).map(|i| i as f32 * 0.5).collect();
        let w = floats(1, 5);
        let m = floats(100, moments);
        let v = floats(1000, moments);
        let image = LayerImage { layer: LayerId(3), version: Step(9), w, m, v };
        let bytes = image.encode();
        let body = LayerBody::new(Arc::new(image));
        assert_eq!(body.len(), bytes.len() as u64);
        for start in 0..bytes.len() {
            for end in start..=bytes.len() {
                let mut found = vec![0; end - start];
                body.read(start as u64, &mut found).expect("within the body");
                assert_eq!(found, bytes[start..end], "{start}..{end}");
            }
        }
        for piece in 1..=bytes.len() + 1 {
            let mut reader = BodyReader::new(&body);
            let mut found = Vec::new();
            let mut into = vec![0; piece];
            loop {
                let count = io::Read::read(&mut reader, &mut into).expect("within the body");
                if count == 0 {
                    break;
                }
                found.extend_from_slice(&into[..count]);
            }
            assert_eq!(found, bytes, "read by {piece} bytes");
        }
        assert!(body.read(bytes.len() as u64, &mut [0]).is_err());
        assert!(body.read(0, &mut vec![0; bytes.len() + 1]).is_err());
    }
}
