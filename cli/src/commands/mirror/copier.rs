//! Copies the newest checkpoint of a cluster into a mirror, chunk by chunk: no more than one is in
//! memory.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointId, Manifest, PieceRecord};
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::state::State;
use zbelastic_mirror::{Mirror, MirroredCheckpoint, MirroredData};
use zbelastic_node::cluster::recovery::CheckpointDocument;
use zbelastic_types::Bytes;
use zbelastic_wire::document::{DataName, JobDocument};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

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

/// Why nothing was copied.
#[derive(Debug)]
pub enum CopyError {
    /// Neither a person nor the run says where to. Another attempt gives the same.
    NoPlace {
        /// Name of the run.
        run: String,
    },
    /// The cluster or the mirror failed, which it may not the next time.
    Failed(CommandFailure),
    /// A layer could not be read out of the cluster.
    Fetch {
        /// What was to be copied.
        newest: NewestVersion,
        /// What the cluster answered.
        error: ApiError,
    },
}

/// Number of the newest run, and step of its newest checkpoint.
type NewestVersion = (u64, Option<u64>);

/// Checkpoints in a row that may be removed while they are copied, each for a newer one. A run writes
/// `checkpoint.keep_last` of them in the time of one copy before that happens: behind so many, copies
/// do not keep up.
const SUPERSEDED_MAX: usize = 32;

impl From<CommandFailure> for CopyError {
    fn from(failure: CommandFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ApiError> for CopyError {
    fn from(error: ApiError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<CopyError> for CommandFailure {
    fn from(error: CopyError) -> Self {
        let run = match error {
            CopyError::NoPlace { run } => run,
            CopyError::Failed(failure) => return failure,
            CopyError::Fetch { error, .. } => return error.into(),
        };
        let what = format!("run {run} has no checkpoint.mirror, and no PLACE was given");
        let mut failure = Self::new(FailureCode::Usage, what);
        let detail = FailureDetail::new("there is nowhere to copy checkpoints to");
        let hint =
            "zbelastic mirror s3://bucket/folder; or checkpoint.mirror in a run's configuration";
        failure.details = vec![detail.hint(hint)];
        failure
    }
}

/// Copies checkpoints one after the other.
pub struct CheckpointCopier {
    /// The place that was typed; without, the job names one.
    typed: Option<String>,
    /// The folder with the texts of a controller.
    texts: Option<PathBuf>,
    /// The newest run and its newest checkpoint, once there is nothing of it left to copy.
    seen: Option<NewestVersion>,
    /// Whether a run had a place.
    had_place: bool,
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
        Self { typed, texts, seen: None, had_place: false, mirror: None, data: Vec::new() }
    }

    /// Whether a checkpoint is known to be in the mirror.
    pub const fn has_any(&self) -> bool {
        self.mirror.is_some()
    }

    /// Copies the newest checkpoint of the newest run, unless it is there. One that is removed
    /// meanwhile has a newer one, which is copied instead.
    ///
    /// # Errors
    /// If the cluster does not answer, has removed [`SUPERSEDED_MAX`] checkpoints before they were
    /// copied, or the mirror cannot be written; if there is no place for the first one. A later run
    /// that names none is left out.
    pub fn copy_newest(
        &mut self,
        client: &mut ApiClient<'_>,
    ) -> Result<Option<CopiedCheckpoint>, CopyError> {
        for _ in 1..SUPERSEDED_MAX {
            match self.copy_listed(client) {
                Err(CopyError::Fetch { newest, .. }) if newest_version(client)? != Some(newest) => {
                }
                ended => return ended,
            }
        }
        self.copy_listed(client)
    }

    /// Copies the checkpoint that is listed as the newest, unless it is there.
    fn copy_listed(
        &mut self,
        client: &mut ApiClient<'_>,
    ) -> Result<Option<CopiedCheckpoint>, CopyError> {
        let Some(newest) = newest_version(client)? else { return Ok(None) };
        if self.seen == Some(newest) {
            return Ok(None);
        }
        let state = fetch_state(client)?;
        // None yet, of a run that is listed: the answer was of a node that is behind.
        let Some(job) = state.job() else { return Ok(None) };
        let Some(place) = self.place(&job.spec)? else {
            self.seen = Some(newest);
            return Ok(None);
        };
        if newest.1.is_none() {
            // A checkpoint is seen in the list of runs.
            self.seen = Some(newest);
            return Ok(None);
        }
        let Some(found) = newest_of(&state, place)? else { return Ok(None) };
        let began = Instant::now();
        let copied = self.copy(client, &found)?;
        self.seen = Some(newest);
        Ok(copied.map(|bytes| CopiedCheckpoint {
            run: found.run,
            step: found.manifest.version.version.0,
            bytes,
            place: found.place,
            seconds: began.elapsed().as_secs_f64(),
        }))
    }

    /// Where the checkpoints of a run go; nowhere if one before it had a place and this one has none.
    fn place(&mut self, spec: &JobSpec) -> Result<Option<String>, CopyError> {
        let document = JobDocument::of_job(spec).map_err(|error| unreadable(&error))?;
        let configured = document.job.config.checkpoint.mirror;
        let place = self.typed.clone().or(configured);
        self.had_place |= place.is_some();
        if self.had_place { Ok(place) } else { Err(CopyError::NoPlace { run: spec.name.clone() }) }
    }

    /// Yields how many bytes were listed; nothing if the mirror has the checkpoint.
    fn copy(
        &mut self,
        client: &mut ApiClient<'_>,
        newest: &NewestCheckpoint,
    ) -> Result<Option<Bytes>, CopyError> {
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

fn newest_version(client: &mut ApiClient<'_>) -> Result<Option<NewestVersion>, ApiError> {
    let newest = client.runs()?.pop();
    Ok(newest.map(|run| (run.run, run.checkpoints.last().copied())))
}

fn unreadable(error: &dyn std::fmt::Display) -> CommandFailure {
    let what = format!("the cluster's state cannot be read: {error}");
    CommandFailure::new(FailureCode::VerificationFailed, what)
}

fn fetch_state(client: &mut ApiClient<'_>) -> Result<State, CommandFailure> {
    let (bytes, _) = fetch_backup(client)?;
    State::decode(Format::NEWEST, &bytes).map_err(|error| unreadable(&error))
}

/// The newest checkpoint with all that a new cluster begins with.
fn newest_of(state: &State, place: String) -> Result<Option<NewestCheckpoint>, CommandFailure> {
    let (Some(job), Some(record)) = (state.job(), state.checkpoints().last()) else {
        return Ok(None);
    };
    let spec = &job.spec;
    let document = JobDocument::of_job(spec).map_err(|error| unreadable(&error))?.job;
    let class = state.training().runs().class();
    let manifest = CheckpointDocument::of(spec, record, class).manifest();
    Ok(manifest.map(|manifest| NewestCheckpoint {
        cluster: state.cluster().0,
        run: spec.name.clone(),
        place,
        kept: spec.checkpoints_kept as usize,
        manifest,
        data: document.data(),
    }))
}

fn copy_layer(
    client: &mut ApiClient<'_>,
    mirror: &mut Mirror,
    newest: &NewestCheckpoint,
    layer: u32,
) -> Result<PieceRecord, CopyError> {
    let wrong = |error| cannot_mirror(&newest.place, &error);
    let id = newest.manifest.version;
    let step = id.version.0;
    let mut record = PieceRecord { length: 0, chunks: Vec::new() };
    let mut chunk = Vec::new();
    let mut offset = 0;
    loop {
        let piece = client
            .layer_piece_of(&newest.run, (step, layer), offset)
            .map_err(|error| CopyError::Fetch { newest: (id.run.0, Some(step)), error })?;
        let is_next =
            piece.offset == offset && (record.length == 0 || piece.total == record.length);
        record.length = piece.total;
        offset += piece.bytes.len() as u64;
        if !is_next || offset > piece.total || (piece.bytes.is_empty() && offset < piece.total) {
            let what = format!("layer {layer}: a piece at {}, requested at {offset}", piece.offset);
            return Err(CommandFailure::new(FailureCode::VerificationFailed, what).into());
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

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;

    use super::*;

    fn spec(name: &str, mirror: &str) -> JobSpec {
        let toml = format!("[model]\npreset = \"tiny\"\n{mirror}");
        let config = load_document("test", &toml).expect("legal").config;
        let job = JobDocument::new(name.to_owned(), config, toml, DataName::of(b"text"));
        job.spec(job.encode().expect("short"))
    }

    /// The run before it counts although none of its checkpoints was copied yet.
    #[test]
    fn a_later_run_without_a_place_is_left_out_and_the_first_one_is_refused() {
        let [without, with] =
            ["", "[checkpoint]\nmirror = \"/backups\"\n"].map(|it| spec("wiki", it));
        let mut copier = CheckpointCopier::new(None, None);
        assert!(matches!(copier.place(&without), Err(CopyError::NoPlace { run }) if run == "wiki"));
        assert_eq!(copier.place(&with).expect("it has one").as_deref(), Some("/backups"));
        assert_eq!(copier.place(&without).expect("a run before it had one"), None);
        let mut typed = CheckpointCopier::new(Some("/typed".to_owned()), None);
        assert_eq!(typed.place(&with).expect("it is typed").as_deref(), Some("/typed"));
    }
}
