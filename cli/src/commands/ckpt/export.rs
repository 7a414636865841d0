//! `ckpt export`: a checkpoint's weights as a folder in Hugging Face's form.
//!
//! Layers come as the images they are stored as, piece by piece, and are checked against the digest
//! that the cluster agreed on. Moments are not sent: chaining values of the hash stand for them.
//! Nothing is written before all of it is there.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{
    ApiRefusal, CheckpointDetail, HexDigest, LAYERS_READ_MAX, LayerDetail, PIECE_BYTES_MAX,
    ResourceKind, escape,
};
use zbelastic_config::load_document;
use zbelastic_kernels::HostFloats;
use zbelastic_machine::whole_file;
use zbelastic_trainer::elastic::{
    ChainingValue, LayerAssembler, LoadedWeights, image_bytes, moment_subtrees, weights_end,
};
use zbelastic_trainer::hf::{config_json, write_safetensors};
use zbelastic_trainer::model::{LayerSpec, ModelConfig, model_layers};
use zbelastic_types::{Bytes, LayerId, Step};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail, cannot_write};

/// File of the model's description.
const CONFIG: &str = "config.json";
/// File of the weights.
const WEIGHTS: &str = "model.safetensors";

/// Writes the checkpoint of `step`, or the newest one, into `folder`.
///
/// # Errors
/// If there is no such checkpoint, if the received bytes are damaged, if the folder holds a model,
/// or if it cannot be written.
pub fn export<'a>(
    folder: &Path,
    step: Option<u64>,
    connect: impl Fn() -> Result<ApiClient<'a>, CommandFailure> + Sync,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    check_free(folder)?;
    let mut client = connect()?;
    let step = match step {
        Some(step) => step,
        None => newest(&mut client)?,
    };
    let detail = client.checkpoint(step).map_err(CommandFailure::from)?;
    let model = model_of(&detail)?;
    let layers = weights(&detail, &model, connect)?;
    fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    let written =
        whole_file::write_with(&folder.join(WEIGHTS), |to| write_safetensors(&model, &layers, to));
    written.map_err(|error| cannot_write(&folder.join(WEIGHTS), &error))?;
    let written = whole_file::write(&folder.join(CONFIG), config_json(&model).as_bytes());
    written.map_err(|error| cannot_write(&folder.join(CONFIG), &error))?;
    let floats: usize = layers.iter().map(|weights| weights.len()).sum();
    let shown = folder.display();
    let size = Bytes::of_f32(floats);
    writeln!(out, "checkpoint {step}: {floats} parameters, {size}, in {shown}")?;
    Ok(())
}

/// The weights of a checkpoint, layer by layer, each checked against its digest: by as many
/// connections as a controller reads layers for at once, so that a piece that is waited for does
/// not keep others from coming.
///
/// # Errors
/// If one cannot be had whole, or the cluster is not reached.
pub fn weights<'a>(
    detail: &CheckpointDetail,
    model: &ModelConfig,
    connect: impl Fn() -> Result<ApiClient<'a>, CommandFailure> + Sync,
) -> Result<Vec<HostFloats>, CommandFailure> {
    let specs = model_layers(model);
    let layers: Vec<_> = detail.layers.iter().zip(&specs).collect();
    let next = AtomicUsize::new(0);
    let read = || -> Result<Vec<(usize, HostFloats)>, CommandFailure> {
        let mut client = connect()?;
        let mut found = Vec::new();
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some((layer, spec)) = layers.get(at)
        {
            let read = fetch(detail.summary.step, layer, spec, &mut client);
            // Without one of them the others are of no use.
            found.push((at, read.inspect_err(|_| next.store(layers.len(), Ordering::Relaxed))?));
        }
        Ok(found)
    };
    let found = thread::scope(|scope| {
        let readers: Vec<_> = (0..LAYERS_READ_MAX).map(|_| scope.spawn(read)).collect();
        let found = readers.into_iter().map(|reader| reader.join().expect("it does not panic"));
        found.collect::<Result<Vec<_>, CommandFailure>>()
    });
    let mut found: Vec<_> = found?.into_iter().flatten().collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, weights)| weights).collect())
}

fn check_free(folder: &Path) -> Result<(), CommandFailure> {
    let held = [CONFIG, WEIGHTS].into_iter().find(|name| folder.join(name).exists());
    let Some(held) = held else { return Ok(()) };
    let what = format!("{} holds a model already", folder.display());
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    let detail = FailureDetail::new(format!("there is {held}"));
    failure.details = vec![detail.hint("another folder, or remove what is in this one")];
    Err(failure)
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
    let loaded = load_document(&format!("checkpoint {step}"), &detail.document)?;
    let expected = model_layers(&loaded.config.model).len();
    let found = detail.layers.len();
    let are_in_order = (0..).zip(&detail.layers).all(|(index, layer)| layer.layer == index);
    if expected == found && are_in_order {
        return Ok(loaded.config.model);
    }
    let what = format!("checkpoint {step} has {found} layers, expected {expected} in their order");
    Err(CommandFailure::new(FailureCode::VerificationFailed, what))
}

/// The weights of a layer.
fn fetch(
    step: u64,
    layer: &LayerDetail,
    spec: &LayerSpec,
    client: &mut ApiClient<'_>,
) -> Result<HostFloats, CommandFailure> {
    let name = format!("layer {} of checkpoint {step}", layer.layer);
    let read = fetch_weights(step, layer.layer, image_bytes(spec.len()), client)?;
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
    step: u64,
    layer: u32,
    expected: u64,
    client: &mut ApiClient<'_>,
) -> Result<LoadedWeights, CommandFailure> {
    let name = format!("layer {layer} of checkpoint {step}");
    let mut image = LayerAssembler::of_weights(expected);
    let weights_end = weights_end(expected);
    while image.found() < weights_end {
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
    let subtrees = 0..moment_subtrees(expected).len() as u32;
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
    use zbelastic_trainer::hf::import_safetensors;
    use zbelastic_types::Digest;

    use super::*;
    use zbelastic_api::sample::{self, digest, scripted};
    use zbelastic_api::{ApiAnswer, ApiRequest, LayerPiece, decode_request, encode_answer};

    const DOCUMENT: &str = "[model]\nfamily = \"llama\"\nlayers = 1\nwidth = 8\nheads = 2\n\
                            mlp_width = 16\n[train]\nseq_len = 16\n";

    fn model() -> ModelConfig {
        load_document("test", DOCUMENT).expect("legal").config.model
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

    fn exported(
        folder: &Path,
        detail: &CheckpointDetail,
        images: &[LayerImage],
    ) -> Result<String, FailureCode> {
        let mut out = Vec::new();
        match export(folder, Some(100), || Ok(client(detail, images)), &mut out) {
            Ok(()) => Ok(String::from_utf8(out).expect("UTF-8")),
            Err(CommandError::Failed(failure)) => Err(failure.code),
            Err(CommandError::Output(error)) => panic!("{error}"),
        }
    }

    fn subtrees(bytes: &[u8]) -> Vec<ApiAnswer> {
        let read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
            Ok(())
        };
        let values = moment_subtrees(bytes.len() as u64).into_iter();
        let values = values.map(|subtree| moment_value(subtree, read).expect("it is read"));
        values.map(|value| ApiAnswer::Subtree(HexDigest(Digest(value.0)))).collect()
    }

    #[test]
    fn weights_come_out_as_they_went_in() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("model");
        let images = images();
        let printed = exported(&folder, &detail(&images), &images).expect("exported");
        assert!(printed.starts_with("checkpoint 100: "), "{printed}");
        let file = fs::read(folder.join(WEIGHTS)).expect("written");
        let layers = import_safetensors(&model(), &file).expect("a model");
        let expected: Vec<Vec<f32>> = images.iter().map(|image| image.w.to_vec()).collect();
        assert_eq!(layers, expected);
        assert_eq!(
            fs::read_to_string(folder.join(CONFIG)).expect("written"),
            config_json(&model())
        );
        let again = exported(&folder, &detail(&images), &images);
        assert_eq!(again, Err(FailureCode::WrongState));
    }

    #[test]
    fn what_is_damaged_is_not_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("model");
        let images = images();
        let check = |detail: CheckpointDetail, images: &[LayerImage]| {
            assert_eq!(exported(&folder, &detail, images), Err(FailureCode::VerificationFailed));
            assert!(!folder.exists());
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
        let bytes = images()[0].encode();
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
            let failure = fetch_weights(100, 0, total as u64, &mut client).expect_err("no layer");
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
        let read = fetch_weights(100, 0, total as u64, &mut client).expect("it comes");
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
