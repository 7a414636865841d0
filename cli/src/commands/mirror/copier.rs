//! Copies the newest checkpoint of a cluster into a mirror, chunk by chunk: no more than one is in
//! memory.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use zbelastic_api::client::ApiClient;
use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointId, Manifest, PieceRecord};
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::state::State;
use zbelastic_mirror::{Mirror, MirroredCheckpoint, MirroredData};
use zbelastic_node::cluster::recovery::CheckpointDocument;
use zbelastic_types::Bytes;
use zbelastic_wire::document::{DataName, JobDocument};
use zbelastic_wording::{CommandFailure, FailureCode};

use super::open_mirror;
use crate::commands::cluster::fetch_backup;
use crate::commands::mirror_failure::cannot_mirror;

/// A checkpoint that was copied.
pub struct CopiedCheckpoint {
    pub run: String,
    pub step: u64,
    pub bytes: Bytes,
    pub place: String,
    pub seconds: f64,
}

/// Copies checkpoints one after the other.
pub struct CheckpointCopier {
    /// The place that was typed; without, the job names one.
    typed: Option<String>,
    /// The folder with the texts of a controller.
    texts: Option<PathBuf>,
    /// The run and step of the last checkpoint that was found in the mirror, or copied.
    last: Option<(u64, u64)>,
    mirror: Option<(String, Mirror)>,
    /// Files of the run that the mirror has.
    data: Vec<MirroredData>,
}

/// What is to be copied.
struct NewestCheckpoint {
    cluster: u64,
    run: String,
    place: String,
    kept: usize,
    manifest: Manifest,
    data: Vec<DataName>,
}

impl CheckpointCopier {
    pub const fn new(typed: Option<String>, texts: Option<PathBuf>) -> Self {
        Self { typed, texts, last: None, mirror: None, data: Vec::new() }
    }

    /// Whether a checkpoint is known to be in the mirror.
    pub const fn has_any(&self) -> bool {
        self.last.is_some()
    }

    /// Copies the newest checkpoint of the newest run, unless it is there.
    ///
    /// # Errors
    /// If the cluster does not answer, has removed the checkpoint meanwhile, or the mirror cannot be
    /// written.
    pub fn copy_newest(
        &mut self,
        client: &mut ApiClient<'_>,
    ) -> Result<Option<CopiedCheckpoint>, CommandFailure> {
        let newest = client.runs()?.pop();
        let newest = newest.and_then(|run| Some((run.run, *run.checkpoints.last()?)));
        let Some(newest) = newest.filter(|newest| self.last != Some(*newest)) else {
            return Ok(None);
        };
        let Some(found) = self.newest(client)? else { return Ok(None) };
        let began = Instant::now();
        let copied = self.copy(client, &found)?;
        self.last = Some(newest);
        Ok(copied.map(|bytes| CopiedCheckpoint {
            run: found.run,
            step: found.manifest.version.version.0,
            bytes,
            place: found.place,
            seconds: began.elapsed().as_secs_f64(),
        }))
    }

    /// The newest checkpoint with all that a new cluster begins with, if the job has a mirror.
    fn newest(
        &self,
        client: &mut ApiClient<'_>,
    ) -> Result<Option<NewestCheckpoint>, CommandFailure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            let what = format!("the cluster's state cannot be read: {error}");
            CommandFailure::new(FailureCode::VerificationFailed, what)
        };
        let (bytes, _) = fetch_backup(client)?;
        let state = State::decode(Format::NEWEST, &bytes).map_err(|error| unreadable(&error))?;
        let (Some(job), Some(record)) = (state.job(), state.checkpoints().last()) else {
            return Ok(None);
        };
        let spec = &job.spec;
        let document = JobDocument::of_job(spec).map_err(|error| unreadable(&error))?.job;
        let place = self.typed.clone().or_else(|| document.config.checkpoint.mirror.clone());
        let Some(place) = place else { return Ok(None) };
        let class = state.training().runs().class();
        let run = spec.name.clone();
        let kept = spec.checkpoints_kept as usize;
        let manifest = CheckpointDocument::of(spec, record, class).manifest();
        let Some(manifest) = manifest else { return Ok(None) };
        let cluster = state.cluster().0;
        let data = document.data();
        Ok(Some(NewestCheckpoint { cluster, run, place, kept, manifest, data }))
    }

    /// Yields how many bytes were listed; nothing if the mirror has the checkpoint.
    fn copy(
        &mut self,
        client: &mut ApiClient<'_>,
        newest: &NewestCheckpoint,
    ) -> Result<Option<Bytes>, CommandFailure> {
        let place = &newest.place;
        let wrong = |error| cannot_mirror(place, &error);
        let mut mirror = match self.mirror.take() {
            Some((of, mirror)) if of == *place => mirror,
            Some(_) | None => open_mirror(place)?,
        };
        mirror.check_owner(newest.cluster).map_err(wrong)?;
        let id = newest.manifest.version;
        let present = mirror.checkpoints().map_err(wrong)?;
        if present.contains(&id) {
            self.mirror = Some((place.clone(), mirror));
            return Ok(None);
        }
        let data = self.copy_data(&mut mirror, newest, present.last())?;
        let mut pieces = Vec::new();
        for layer in &newest.manifest.layers {
            pieces.push(copy_layer(client, &mut mirror, newest, layer.layer.0)?);
        }
        let checkpoint = MirroredCheckpoint {
            cluster: newest.cluster,
            cluster_name: client.cluster()?.name,
            run_name: newest.run.clone(),
            manifest: newest.manifest.clone(),
            pieces,
            data: data.clone(),
        };
        mirror.put_checkpoint(&checkpoint).map_err(wrong)?;
        mirror.keep_newest(id.run, newest.kept).map_err(wrong)?;
        self.data = data;
        self.mirror = Some((place.clone(), mirror));
        Ok(Some(Bytes(checkpoint.bytes())))
    }

    /// Copies the files of the run that lie beside the controller and are not in the mirror.
    fn copy_data(
        &self,
        mirror: &mut Mirror,
        newest: &NewestCheckpoint,
        before: Option<&CheckpointId>,
    ) -> Result<Vec<MirroredData>, CommandFailure> {
        let wrong = |error| cannot_mirror(&newest.place, &error);
        let mut known = self.data.clone();
        // A damaged one is no reason not to write the next.
        known.extend(
            before
                .and_then(|id| mirror.checkpoint(*id).ok())
                .into_iter()
                .flat_map(|found| found.data),
        );
        let mut data = Vec::new();
        for name in &newest.data {
            if let Some(found) = known.iter().find(|found| found.hash == name.hash) {
                data.push(found.clone());
                continue;
            }
            let path = self.texts.as_ref().map(|texts| texts.join(format!("{}.data", name.hash)));
            let Some(mut file) = path.and_then(|path| File::open(path).ok()) else { continue };
            let mut record = PieceRecord { length: 0, chunks: Vec::new() };
            loop {
                let mut chunk = Vec::new();
                let read = (&mut file).take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
                let read = read.map_err(|error| {
                    let what = format!("cannot read the run's text: {error}");
                    CommandFailure::new(FailureCode::OutOfResource, what)
                })?;
                if read == 0 {
                    break;
                }
                record.length += read as u64;
                record.chunks.push(mirror.put_chunk(chunk).map_err(wrong)?);
            }
            // One that is still being written has another name, so this is a whole one.
            data.push(MirroredData { hash: name.hash, record });
        }
        Ok(data)
    }
}

fn copy_layer(
    client: &mut ApiClient<'_>,
    mirror: &mut Mirror,
    newest: &NewestCheckpoint,
    layer: u32,
) -> Result<PieceRecord, CommandFailure> {
    let wrong = |error| cannot_mirror(&newest.place, &error);
    let step = newest.manifest.version.version.0;
    let mut record = PieceRecord { length: 0, chunks: Vec::new() };
    let mut chunk = Vec::new();
    let mut offset = 0;
    loop {
        let piece = client.layer_piece_of(&newest.run, (step, layer), offset)?;
        let is_next =
            piece.offset == offset && (record.length == 0 || piece.total == record.length);
        record.length = piece.total;
        offset += piece.bytes.len() as u64;
        if !is_next || offset > piece.total || (piece.bytes.is_empty() && offset < piece.total) {
            let what = format!("layer {layer}: a piece at {}, requested at {offset}", piece.offset);
            return Err(CommandFailure::new(FailureCode::VerificationFailed, what));
        }
        chunk.extend(piece.bytes);
        while chunk.len() >= CHUNK_BYTES {
            let rest = chunk.split_off(CHUNK_BYTES);
            record.chunks.push(mirror.put_chunk(chunk).map_err(wrong)?);
            chunk = rest;
        }
        if offset == piece.total {
            break;
        }
    }
    if !chunk.is_empty() {
        record.chunks.push(mirror.put_chunk(chunk).map_err(wrong)?);
    }
    Ok(record)
}
