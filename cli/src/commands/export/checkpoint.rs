//! A checkpoint of a cluster: its weights, for a folder in Hugging Face's form.
//!
//! Layers come as the images they are stored as, piece by piece, and are checked against the digest
//! that the cluster agreed on. Moments are not sent: chaining values of the hash stand for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{
    ApiRefusal, CheckpointDetail, HexDigest, LAYERS_READ_MAX, LayerDetail, PIECE_BYTES_MAX,
    ResourceKind, escape,
};
use zbelastic_config::load_recorded;
use zbelastic_kernels::HostFloats;
use zbelastic_trainer::elastic::{
    ChainingValue, LayerAssembler, LoadedWeights, StateLen, image_bytes, moment_subtrees,
    weights_end,
};
use zbelastic_trainer::model::{LayerSpec, ModelConfig, model_layers};
use zbelastic_types::{LayerId, Step};
use zbelastic_wording::{CommandFailure, FailureCode};

use super::read_ahead::{ReadAhead, ReadLayer};

/// The checkpoint of `step`, or the newest one, and the model that it is of.
///
/// # Errors
/// If there is no such checkpoint, or it is not of the model that its configuration describes.
pub fn describe(
    step: Option<u64>,
    client: &mut ApiClient<'_>,
) -> Result<(CheckpointDetail, ModelConfig), CommandFailure> {
    let step = match step {
        Some(step) => step,
        None => newest(client)?,
    };
    let detail = client.checkpoint(step).map_err(CommandFailure::from)?;
    let model = model_of(&detail)?;
    Ok((detail, model))
}

/// Calls `write` with a function that yields the weights of the layers in `order`, each checked against its digest.
///
/// They are read ahead by as many connections as a controller reads layers for at once, so that a piece
/// that is waited for does not keep others from coming. A model of any size takes the memory of so
/// many layers and two more.
///
/// # Errors
/// Those of `write`. The function fails if a layer cannot be had whole, or the cluster is not reached.
pub fn with_weights<'a, T>(
    detail: &CheckpointDetail,
    model: &ModelConfig,
    order: &[LayerId],
    connect: impl Fn() -> Result<ApiClient<'a>, CommandFailure> + Sync,
    write: impl FnOnce(&mut LayerRequest<'_>) -> Result<T, CommandFailure>,
) -> Result<T, CommandFailure> {
    let specs = model_layers(model);
    check_layers(detail, &specs)?;
    let is_over = AtomicBool::new(false);
    let read = |layer: LayerId, client: &mut ApiClient<'a>| {
        let index = layer.0 as usize;
        fetch(detail.summary.step, (&detail.layers[index], &specs[index]), client, &is_over)
    };
    let (read, connect) = (&read, &connect);
    let largest = order.iter().copied().max_by_key(|layer| detail.layers[layer.0 as usize].bytes);
    thread::scope(|scope| {
        let (sender, layers) = mpsc::channel();
        let start = |reader| {
            let (request, requests) = mpsc::channel();
            let sender = sender.clone();
            scope.spawn(move || read_requested(reader, requests, connect, read, &sender));
            request
        };
        let readers = (0..LAYERS_READ_MAX).map(start).collect();
        drop(sender);
        let mut ahead = ReadAhead::new(order, largest, readers, layers);
        let written = write(&mut |layer| ahead.take(layer));
        // What is being read is of no use to anybody.
        is_over.store(true, Ordering::Relaxed);
        written
    })
}

/// Yields a layer; each is requested once, in an order that was given before.
pub type LayerRequest<'a> = dyn FnMut(LayerId) -> Result<HostFloats, CommandFailure> + 'a;

/// Reads the layers that are requested, by one connection.
fn read_requested<'a>(
    reader: usize,
    requests: Receiver<LayerId>,
    connect: impl Fn() -> Result<ApiClient<'a>, CommandFailure>,
    read: impl Fn(LayerId, &mut ApiClient<'a>) -> Result<HostFloats, CommandFailure>,
    layers: &Sender<ReadLayer>,
) {
    let mut client = connect();
    for layer in requests {
        let weights = match &mut client {
            Ok(client) => read(layer, client),
            Err(failure) => Err(failure.clone()),
        };
        // Nobody waits for it if another one could not be had.
        let _ = layers.send(ReadLayer { reader, layer, weights });
    }
}

fn newest(client: &mut ApiClient<'_>) -> Result<u64, CommandFailure> {
    let checkpoints = client.checkpoints()?;
    let newest = checkpoints.iter().map(|checkpoint| checkpoint.step).max();
    newest.ok_or_else(|| {
        ApiRefusal::NotFound { thing: ResourceKind::Checkpoint, name: "of this run".to_owned() }
            .failure()
    })
}

/// The model, as the checkpoint's configuration describes it.
fn model_of(detail: &CheckpointDetail) -> Result<ModelConfig, CommandFailure> {
    let step = detail.summary.step;
    let loaded = load_recorded(&format!("checkpoint {step}"), &detail.document)?;
    check_layers(detail, &model_layers(&loaded.config.model))?;
    Ok(loaded.config.model)
}

fn check_layers(detail: &CheckpointDetail, specs: &[LayerSpec]) -> Result<(), CommandFailure> {
    let (expected, found) = (specs.len(), detail.layers.len());
    let are_in_order = (0..).zip(&detail.layers).all(|(index, layer)| layer.layer == index);
    if expected == found && are_in_order {
        return Ok(());
    }
    let step = detail.summary.step;
    let what = format!("checkpoint {step} has {found} layers, expected {expected} in their order");
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

/// The weights of a layer.
fn fetch(
    step: u64,
    (layer, spec): (&LayerDetail, &LayerSpec),
    client: &mut ApiClient<'_>,
    is_over: &AtomicBool,
) -> Result<HostFloats, CommandFailure> {
    let name = format!("layer {} of checkpoint {step}", layer.layer);
    let bytes = layer.bytes.0;
    let Some(len) = StateLen::of_image(spec.len(), bytes) else {
        return Err(wrong(&name, &format!("{bytes} bytes for {} weights", spec.len())));
    };
    let read = fetch_weights((step, layer.layer), len, client, is_over)?;
    if read.layer != LayerId(layer.layer) || read.version != Step(step) {
        let what = format!("it says that it is layer {} at {}", read.layer, read.version);
        return Err(wrong(&name, &what));
    }
    let found = HexDigest(read.digest);
    if found == layer.digest {
        return Ok(read.w);
    }
    Err(ApiRefusal::Damaged { what: name, expected: layer.digest, found }.failure())
}

/// The weights of a layer, and the digest of all of it: put together and hashed as its pieces come.
/// For its moments, which are not exported, chaining values of that hash are requested.
fn fetch_weights(
    (step, layer): (u64, u32),
    len: StateLen,
    client: &mut ApiClient<'_>,
    is_over: &AtomicBool,
) -> Result<LoadedWeights, CommandFailure> {
    let name = format!("layer {layer} of checkpoint {step}");
    let expected = image_bytes(len);
    let mut image = LayerAssembler::of_weights(len);
    let weights_end = weights_end(len);
    while image.found() < weights_end {
        if is_over.load(Ordering::Relaxed) {
            return Err(CommandFailure::new(
                FailureCode::Interrupted,
                format!("{name} is not needed"),
            ));
        }
        let offset = image.found();
        let piece = client.layer_piece(step, layer, offset)?;
        if piece.total != expected {
            let what = format!("it has {} bytes, expected {expected}", piece.total);
            return Err(wrong(&name, &what));
        }
        let length = piece.bytes.len();
        let is_full = length == PIECE_BYTES_MAX || offset + length as u64 == expected;
        if piece.offset != offset || length == 0 || !is_full {
            let what =
                format!("a piece of {length} bytes at {}, requested at {offset}", piece.offset);
            return Err(wrong(&name, &what));
        }
        let wanted = length.min((weights_end - offset) as usize);
        image.push(&piece.bytes[..wanted]).map_err(|error| wrong(&name, &error.to_string()))?;
    }
    let subtrees = 0..moment_subtrees(len).len() as u32;
    let values = subtrees.map(|subtree| client.layer_subtree(step, layer, subtree));
    let values = values.map(|value| value.map(|value| ChainingValue(value.0.0)));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    image.finish_weights(&values).map_err(|error| wrong(&name, &error.to_string()))
}

fn wrong(name: &str, what: &str) -> CommandFailure {
    let what = format!("{name} cannot be used: {}", escape(what));
    CommandFailure::new(FailureCode::VerificationFailed, what)
}

#[cfg(test)]
mod tests {
    use zbelastic_trainer::elastic::{LayerImage, layer_digest, moment_value};
    use zbelastic_types::{Bytes, Digest};

    use super::*;
    use zbelastic_api::sample::{self, digest, scripted};
    use zbelastic_api::{ApiAnswer, ApiRequest, LayerPiece, decode_request, encode_answer};

    static NOT_OVER: AtomicBool = AtomicBool::new(false);
    const DOCUMENT: &str = "[model]\nfamily = \"llama\"\nlayers = 1\nwidth = 8\nheads = 2\n\
                            mlp_width = 16\n[train]\nseq_len = 16\n";

    fn model() -> ModelConfig {
        zbelastic_config::load_document("test", DOCUMENT).expect("legal").config.model
    }

    /// Layers whose weights count upwards.
    fn images() -> Vec<LayerImage> {
        let image = |(index, spec): (usize, LayerSpec)| {
            let count = |from: f32| (0..spec.len()).map(|i| from + i as f32).collect();
            let w = count(index as f32 * 1000.0);
            let m = count(0.5);
            let v = count(0.25);
            LayerImage { layer: LayerId(index as u32), version: Step(100), w, m, v }
        };
        model_layers(&model()).into_iter().enumerate().map(image).collect()
    }

    fn detail(images: &[LayerImage]) -> CheckpointDetail {
        let layer = |image: &LayerImage| LayerDetail {
            layer: image.layer.0,
            digest: layer_digest(image).into(),
            bytes: Bytes(image.encode().len() as u64),
            holders: Vec::new(),
        };
        CheckpointDetail {
            summary: sample::checkpoint(100),
            document: DOCUMENT.to_owned(),
            corpus: digest(7),
            tokenizer: None,
            end_of_text: None,
            layers: images.iter().map(layer).collect(),
        }
    }

    fn piece(bytes: Vec<u8>, total: usize, offset: u64) -> ApiAnswer {
        ApiAnswer::Layer(LayerPiece { total: total as u64, offset, bytes })
    }

    /// A client of a controller that has this checkpoint, and these layers of it.
    fn client(detail: &CheckpointDetail, images: &[LayerImage]) -> ApiClient<'static> {
        let detail = detail.clone();
        let bodies: Vec<Vec<u8>> = images.iter().map(LayerImage::encode).collect();
        let exchange = move |_: &[String], message: &[u8]| {
            let request = decode_request(message).expect("a request");
            let answer = if let ApiRequest::CheckpointExport { layer, offset, .. } = request {
                let body = &bodies[layer as usize];
                let bytes = body[offset as usize..].iter().take(PIECE_BYTES_MAX);
                piece(bytes.copied().collect(), body.len(), offset)
            } else if let ApiRequest::CheckpointSubtree { layer, subtree, .. } = request {
                subtrees(&bodies[layer as usize]).swap_remove(subtree as usize)
            } else {
                assert!(matches!(request, ApiRequest::CheckpointShow { .. }), "{request:?}");
                ApiAnswer::Checkpoint(detail.clone())
            };
            Ok(encode_answer(&answer).expect("small"))
        };
        ApiClient::new(vec!["a:7000".to_owned()], Box::new(exchange))
    }

    fn read(
        detail: &CheckpointDetail,
        images: &[LayerImage],
    ) -> Result<Vec<Vec<f32>>, FailureCode> {
        let connect = || Ok(client(detail, images));
        let (detail, model) = connect()
            .and_then(|mut client| describe(Some(100), &mut client))
            .map_err(|failure| failure.code)?;
        let order: Vec<LayerId> = (0..detail.layers.len() as u32).rev().map(LayerId).collect();
        let read = with_weights(&detail, &model, &order, connect, |layers| {
            order.iter().map(|layer| Ok(layers(*layer)?.to_vec())).collect::<Result<Vec<_>, _>>()
        });
        let mut layers = read.map_err(|failure| failure.code)?;
        layers.reverse();
        Ok(layers)
    }

    fn subtrees(bytes: &[u8]) -> Vec<ApiAnswer> {
        let read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
            Ok(())
        };
        let len = StateLen::of_header(bytes.first_chunk().expect("a header")).expect("a layer");
        let values = moment_subtrees(len).into_iter();
        let values = values.map(|subtree| moment_value(subtree, read).expect("it is read"));
        values.map(|value| ApiAnswer::Subtree(HexDigest(Digest(value.0)))).collect()
    }

    #[test]
    fn weights_come_out_as_they_went_in() {
        let images = images();
        let expected: Vec<Vec<f32>> = images.iter().map(|image| image.w.to_vec()).collect();
        assert_eq!(read(&detail(&images), &images), Ok(expected.clone()));
        // Of frozen weights there are no moments: fewer, and none.
        let shorter = |(index, image): (usize, &LayerImage)| {
            let cut = |part: &[f32]| part.iter().take(5 * index).copied().collect();
            LayerImage { m: cut(&image.m), v: cut(&image.v), ..image.clone() }
        };
        let shorter: Vec<LayerImage> = images.iter().enumerate().map(shorter).collect();
        assert_eq!(read(&detail(&shorter), &shorter), Ok(expected));
    }

    #[test]
    fn who_writes_may_end_early_and_gets_the_failure_to_connect() {
        let images = images();
        let detail = detail(&images);
        let (_, model) = describe(Some(100), &mut client(&detail, &images)).expect("it is there");
        let order: Vec<LayerId> = (0..detail.layers.len() as u32).map(LayerId).collect();
        let full = || CommandFailure::new(FailureCode::OutOfResource, "the disk is full");
        let connect = || Ok(client(&detail, &images));
        let written = with_weights(&detail, &model, &order, connect, |layers| {
            layers(order[0])?;
            Err::<(), _>(full())
        });
        assert_eq!(written.expect_err("full").code, FailureCode::OutOfResource);
        let one = with_weights(&detail, &model, &order[..1], connect, |layers| layers(order[0]));
        assert_eq!(one.expect("it is read"), images[0].w);
        let nobody = || Err(CommandFailure::new(FailureCode::Unreachable, "nobody"));
        let read = with_weights(&detail, &model, &order, nobody, |layers| layers(order[0]));
        assert_eq!(read.expect_err("nobody").code, FailureCode::Unreachable);
    }

    #[test]
    fn what_is_damaged_is_not_read() {
        let images = images();
        let check = |detail: CheckpointDetail, images: &[LayerImage]| {
            assert_eq!(read(&detail, images), Err(FailureCode::VerificationFailed));
        };
        let mut flipped = images.clone();
        let mut floats = flipped[1].w.to_vec();
        floats[0] += 1.0;
        flipped[1].w = floats.into();
        check(detail(&images), &flipped);
        let mut moments = images.clone();
        let mut floats = moments[1].v.to_vec();
        floats[0] += 1.0;
        moments[1].v = floats.into();
        check(detail(&images), &moments);
        let mut late = images.clone();
        late[0].version = Step(101);
        check(detail(&late), &late);
        let mut few = detail(&images);
        few.layers.pop();
        check(few, &images);
    }

    #[test]
    fn pieces_that_are_none_of_the_layer_are_refused() {
        let image = &images()[0];
        let bytes = image.encode();
        let total = bytes.len();
        let pieces = [
            piece(bytes.clone(), total, 1),
            piece(bytes.clone(), total - 1, 0),
            piece(bytes[..10].to_vec(), total, 0),
            piece(Vec::new(), total, 0),
            piece(bytes, 65 << 30, 0),
        ];
        for piece in pieces {
            let (mut client, _) = scripted(vec![Ok(piece)]);
            let failure = fetch_weights((100, 0), image.state_len(), &mut client, &NOT_OVER)
                .expect_err("no layer");
            assert_eq!(failure.code, FailureCode::VerificationFailed, "{failure}");
        }
    }

    #[test]
    fn a_layer_comes_in_pieces() {
        let part = |scale: f32| (0..150_000).map(|i| scale * i as f32).collect();
        let w = part(1.0);
        let m = part(0.5);
        let v = part(0.25);
        let image = LayerImage { layer: LayerId(0), version: Step(100), w, m, v };
        let bytes = image.encode();
        let total = bytes.len();
        let pieces = bytes.chunks(PIECE_BYTES_MAX).enumerate().take(2);
        let pieces = pieces
            .map(|(index, bytes)| piece(bytes.to_vec(), total, (index * PIECE_BYTES_MAX) as u64));
        let answers: Vec<_> = pieces.chain(subtrees(&bytes)).map(Ok).collect();
        let answer_count = answers.len();
        let (mut client, requests) = scripted(answers);
        let digest = layer_digest(&image).into();
        let read =
            fetch_weights((100, 0), image.state_len(), &mut client, &NOT_OVER).expect("it comes");
        assert_eq!(
            (read.layer, read.version, HexDigest(read.digest)),
            (LayerId(0), Step(100), digest)
        );
        assert_eq!(read.w, image.w);
        assert_eq!(
            requests.borrow().len(),
            answer_count,
            "two pieces of four: moments are not sent"
        );
    }
}
