//! A layer that is fetched to where it will lie, and goes on with what came before.

use std::io;

use zbelastic_trainer::elastic::{ImageError, LayerImage, ScatteredLayer, StateLen, image_bytes};
use zbelastic_transport::{ChunkSink, PartialBody, UnfinishedFetch};

/// A layer of which some chunks came.
pub type PartialLayer = PartialBody<LayerSink>;

/// A layer that did not arrive.
#[derive(Debug)]
pub struct UnfinishedLayer {
    /// Why, as a sentence.
    pub error: String,
    /// What came of it, if a later fetch can go on with that.
    pub begun: Option<PartialLayer>,
}

impl UnfinishedLayer {
    /// A layer of which nothing stays.
    #[must_use]
    pub fn lost(error: &dyn ToString) -> Self {
        Self { error: error.to_string(), begun: None }
    }
}

/// Memory for a layer of which nothing came.
fn begin_layer(key: Vec<u8>, len: StateLen) -> Result<PartialLayer, ImageError> {
    let sink = LayerSink(ScatteredLayer::new(len)?);
    Ok(PartialBody::new(key, image_bytes(len), sink))
}

/// Fetches a layer that its holders name by `key`, or what is missing of one that was begun, to where
/// it will lie. The bulk lane verifies its bytes chunk by chunk; that the state is the one that was
/// sealed is verified by the runtime, as far as the plan has its digest, and when the plan resumes.
///
/// # Errors
/// If no holder is left, there is no memory, or another layer came.
pub async fn fetch_image<F>(
    (key, len): (Vec<u8>, StateLen),
    begun: Option<PartialLayer>,
    fetch: impl FnOnce(PartialLayer) -> F,
) -> Result<LayerImage, UnfinishedLayer>
where
    F: Future<Output = Result<LayerSink, UnfinishedFetch<LayerSink>>>,
{
    let body = begun.map_or_else(|| begin_layer(key, len), Ok);
    let body = body.map_err(|error| UnfinishedLayer::lost(&error))?;
    match fetch(body).await {
        Ok(LayerSink(layer)) => layer.finish().map_err(|error| UnfinishedLayer::lost(&error)),
        Err(UnfinishedFetch { error, body: begun }) => {
            Err(UnfinishedLayer { error: error.to_string(), begun })
        }
    }
}

/// A layer that is written as its chunks arrive.
#[derive(Debug)]
pub struct LayerSink(ScatteredLayer);

impl ChunkSink for LayerSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(offset, bytes).map_err(io::Error::other)
    }
}
