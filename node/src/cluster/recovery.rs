//! A new cluster out of one controller's folder, when a majority of the controllers is lost for
//! good.
//!
//! The agreed state is lost, so it continues from the newest checkpoint that this controller's log
//! holds, or, if the log is lost, of which it has the manifest. The new cluster has another id and
//! another authority: a member of the old one is a stranger to it, no matter what it remembers.

mod changeover;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zbelastic_api::MemberRole;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{
    CheckpointId, CheckpointStore, Manifest, PieceName, RecordLog as _, SledLog,
};
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::codec::{self, Format};
use zbelastic_consensus::core::logged_state;
use zbelastic_consensus::job::{JobPhase, JobSpec};
use zbelastic_consensus::raft::RecoveredLog;
use zbelastic_consensus::run_record::RunRecord;
use zbelastic_consensus::state::State;
use zbelastic_identity::{ClusterAuthority, PeerRole, UnixSeconds, random_number};
use zbelastic_timing::unix_ms;
use zbelastic_types::{ClusterId, Digest, LayerId, RunId};
use zbelastic_whole_file as whole_file;
use zbelastic_wire::document::JobDocument;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

use super::membership_failure::{cannot_certify, cannot_keep, unreadable};
use super::{ADMIN_NODE, FIRST_NODE};
use zbelastic_node_folder::node_record::{NewNode, NodeRecord};
use zbelastic_node_folder::stores::StoreLocations;
use zbelastic_node_folder::{AdminFile, NodeDataFolder};

pub use changeover::finish;

/// The state that a recovered cluster begins with, beside the certificates.
const BEGINNING: &str = "beginning.bin";

/// A job, how far it is, the checkpoint from which it continues, and the class of device it has
/// computed on, as far as that is known.
struct ResumedJob {
    phase: JobPhase,
    spec: Arc<JobSpec>,
    record: CheckpointRecord,
    class: Option<DeviceClass>,
}

/// The state that a new cluster begins with.
struct RecoveredState {
    /// The job that it continues with; none if the last run was removed, or has no checkpoint yet.
    resumed: Option<ResumedJob>,
    /// Runs that ended before.
    ended: Vec<RunRecord>,
    /// The last number that a run was given.
    run_last: RunId,
}

/// The document that a manifest holds for a cluster that continues from it.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct CheckpointDocument {
    /// The job that the checkpoint is of.
    pub spec: Arc<JobSpec>,
    /// The checkpoint, as the cluster agreed on it.
    pub record: CheckpointRecord,
    /// The class of device that the job computes on.
    pub class: Option<DeviceClass>,
}

impl CheckpointDocument {
    /// The document of a manifest. Those of versions before there were classes do not name one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        const LIMIT: usize = zbelastic_checkpoint::DOCUMENT_BYTES_MAX;
        let before = || codec::decode::<(Arc<JobSpec>, CheckpointRecord)>(bytes, LIMIT);
        let unnamed = |(spec, record)| Self { spec, record, class: None };
        codec::decode(bytes, LIMIT).or_else(|_| before().map(unnamed)).ok()
    }

    /// The document of a job's checkpoint.
    #[must_use]
    pub fn of(spec: &Arc<JobSpec>, record: &CheckpointRecord, class: Option<DeviceClass>) -> Self {
        Self { spec: Arc::clone(spec), record: record.clone(), class }
    }

    /// The manifest that a recovery continues from; none of a job that this version cannot read.
    #[must_use]
    pub fn manifest(&self) -> Option<Manifest> {
        let JobDocument { program, text, config, .. } = JobDocument::of_job(&self.spec).ok()?.job;
        let version = CheckpointId { run: self.spec.run, version: self.record.version };
        let piece = |(layer, digest)| PieceName { version, layer: LayerId(layer), digest };
        let layers = (0..).zip(self.record.layers.iter().copied()).map(piece).collect();
        let document = codec::encode(self);
        let data = text.hash;
        Some(Manifest { version, layers, document, data, program, seed: config.seed })
    }
}

/// Makes a new cluster of the controller in `folder`, which this process holds. Yields where the
/// files of the old one lie now.
///
/// # Errors
/// If it is no controller's, or has no checkpoint to continue from. Nothing is changed then.
pub fn recover(folder: &NodeDataFolder, old: &NodeRecord) -> Result<PathBuf, CommandFailure> {
    if old.role != MemberRole::Controller {
        let message = format!("{} is no controller's folder", folder.root().display());
        return Err(CommandFailure::new(FailureCode::WrongState, message));
    }
    let RecoveredState { resumed, ended, run_last } = recovered_state(folder, old.cluster)?;
    let cluster = ClusterId(random_number());
    let state = match resumed {
        Some(ResumedJob { phase, spec, record, class }) => {
            State::recovered(cluster, spec, record).held_as(phase).of_class(class)
        }
        None => State::new(cluster),
    };
    let state = state.with_ended(ended, run_last);
    changeover::change_over(folder, &format!("before-{}", old.cluster), |new| {
        let node_record = found_cluster(new, old, cluster)?;
        let path = new.identity().join(BEGINNING);
        let written = whole_file::write(&path, &state.encode());
        written.map_err(|error| cannot_write(&path, &error))?;
        node_record.save(&new.identity()).map_err(|error| unreadable(&error))
    })
}

/// The state that a cluster begins with in this folder, if it was recovered.
///
/// # Errors
/// If there is one that cannot be read.
pub fn beginning(identity: &Path) -> Result<Option<State>, CommandFailure> {
    let path = identity.join(BEGINNING);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot_write(&path, &error)),
    };
    let state = State::decode(Format::NEWEST, &bytes);
    let state = state.map_err(|error| {
        let message = format!("{}: {error}", path.display());
        CommandFailure::new(FailureCode::VerificationFailed, message)
    })?;
    Ok(Some(state))
}

/// The runs and checkpoints that this controller knows: all that its log adds up to. A manifest is
/// written when the log holds the checkpoint already, and so may be missing; where the log has a
/// job, the manifests of other jobs are none of its.
fn recovered_state(
    folder: &NodeDataFolder,
    cluster: ClusterId,
) -> Result<RecoveredState, CommandFailure> {
    let Some(state) = state_of_log(folder, cluster)? else { return state_of_store(folder, None) };
    let Some(job) = state.job() else {
        return match state.ended() {
            [] => state_of_store(folder, None),
            ended => Ok(RecoveredState {
                resumed: None,
                ended: ended.to_vec(),
                run_last: state.training().runs().run_last(),
            }),
        };
    };
    let ended = state.ended().to_vec();
    let run_last = state.training().runs().run_last();
    let class = state.training().runs().class();
    let resumed = match state.checkpoints().last() {
        Some(record) => {
            let spec = Arc::clone(&job.spec);
            let record = record.clone();
            Some(ResumedJob { phase: job.phase, spec, record, class })
        }
        None => match state_of_store(folder, Some(job.spec.config)) {
            Ok(recovered) => recovered.resumed.map(|found| {
                let class = class.or(found.class);
                ResumedJob { phase: job.phase, class, ..found }
            }),
            // It has none yet, and the checkpoints of other runs are not lost for that.
            Err(_) if !ended.is_empty() => None,
            Err(failure) => return Err(failure),
        },
    };
    Ok(RecoveredState { resumed, ended, run_last })
}

/// The state that the log adds up to; the one that a recovery left that was not started since, if
/// there is no log; nothing if there is neither.
fn state_of_log(
    folder: &NodeDataFolder,
    cluster: ClusterId,
) -> Result<Option<State>, CommandFailure> {
    let path = folder.log();
    if !path.exists() {
        return beginning(&folder.identity());
    }
    let failure = |error: &dyn std::fmt::Display| {
        let message = format!("the log cannot be read: {error}");
        let mut failure = CommandFailure::new(FailureCode::VerificationFailed, message);
        failure.details = vec![FailureDetail::new(path.display().to_string()).hint(
            "another controller's folder; or put this one aside, and the newest checkpoint of the \
             store is taken",
        )];
        failure
    };
    let log = SledLog::open(Arc::new(RealFileSystem), &path).map_err(|error| failure(&error))?;
    let records = log.read_all().map_err(|error| failure(&error))?;
    let log = RecoveredLog::from_records(records.iter().map(|(_, bytes)| bytes.as_slice()))
        .map_err(|error| failure(&error))?;
    if log.records.0 == 0 {
        return beginning(&folder.identity());
    }
    logged_state(cluster, &log).map(Some).map_err(|error| failure(&error))
}

/// The state that manifests hold: the newest checkpoint of each run, of which the newest run
/// continues; only the job with this configuration, if one is named.
fn state_of_store(
    folder: &NodeDataFolder,
    config: Option<Digest>,
) -> Result<RecoveredState, CommandFailure> {
    let locations = StoreLocations::new(folder.clone());
    let failure = |error: &dyn std::fmt::Display| {
        CommandFailure::new(FailureCode::VerificationFailed, format!("the store: {error}"))
    };
    let store = locations.last().and_then(|location| locations.open(&location));
    let manifests = store.map_err(|error| failure(&error))?.manifests();
    let manifests = manifests.map_err(|error| failure(&error))?;
    let read = |manifest: &Manifest| {
        CheckpointDocument::decode(&manifest.document)
            .filter(|found| config.is_none_or(|config| config == found.spec.config))
            .map(|found| (manifest.version.run, found))
    };
    // Oldest version first, so that the newest of each run stays.
    let mut newest: BTreeMap<RunId, CheckpointDocument> =
        manifests.iter().filter_map(read).collect();
    let Some((run_last, CheckpointDocument { spec, record, class })) = newest.pop_last() else {
        let mut failure = CommandFailure::new(FailureCode::NotFound, "there is no checkpoint here");
        failure.details = vec![
            FailureDetail::new(
                "a new cluster goes on from a checkpoint that this controller knows",
            )
            .hint("another controller's folder, or `zbelastic init` and a run from the start"),
        ];
        return Err(failure);
    };
    let ended = newest.into_values().map(|CheckpointDocument { spec, record, class }| {
        let is_done = record.version.0 >= spec.step_count;
        let phase = if is_done { JobPhase::Done } else { JobPhase::Stopped };
        RunRecord { spec, phase, class, checkpoint: record }
    });
    let resumed = Some(ResumedJob { phase: JobPhase::Running, spec, record, class });
    Ok(RecoveredState { resumed, ended: ended.collect(), run_last })
}

fn found_cluster(
    folder: &NodeDataFolder,
    old: &NodeRecord,
    cluster: ClusterId,
) -> Result<NodeRecord, CommandFailure> {
    let now = UnixSeconds::now();
    let authority = ClusterAuthority::create(cluster, now).map_err(cannot_certify)?;
    let own =
        authority.credentials(PeerRole::Controller, FIRST_NODE, now).map_err(cannot_certify)?;
    let admin = authority.credentials(PeerRole::Admin, ADMIN_NODE, now).map_err(cannot_certify)?;
    own.save(&folder.identity()).map_err(cannot_keep)?;
    authority.save(&folder.identity().join("authority")).map_err(cannot_keep)?;
    admin.save(&folder.admin()).map_err(cannot_keep)?;
    let own = || vec![super::local_address(old.bind)];
    let addresses = if old.advertised.is_empty() { own() } else { old.advertised.clone() };
    let name = old.cluster_name.clone();
    let id = cluster.to_string();
    folder.write_admin(&AdminFile { name, id, addresses })?;
    Ok(NodeRecord::new(NewNode {
        cluster,
        cluster_name: old.cluster_name.clone(),
        founded_ms: Some(unix_ms()),
        node: FIRST_NODE,
        name: old.name.clone(),
        role: MemberRole::Controller,
        bind: old.bind,
        advertised: old.advertised.clone(),
        controllers: std::collections::BTreeMap::new(),
    }))
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::{CheckpointId, PieceName};
    use zbelastic_consensus::class::{DeviceKind, DeviceName};
    use zbelastic_consensus::raft::{Members, RaftRecord, SnapshotImage, encode_record};
    use zbelastic_consensus::validation::Ledger;
    use zbelastic_types::{Generation, LayerId, Step};
    use zbelastic_wire::document::{DataName, JobDocument};

    use super::*;

    use zbelastic_config::load_document;

    fn job() -> JobSpec {
        let toml = "[model]\npreset = \"tiny\"\n".to_owned();
        let config = load_document("test", &toml).expect("legal").config;
        let job = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
        job.spec(job.encode().expect("short"))
    }

    fn checkpoint(version: u64) -> CheckpointRecord {
        let ledger = Ledger::new(Generation(1), Step(version), version);
        CheckpointRecord { version: Step(version), layers: Vec::new(), ledger }
    }

    fn controller(cluster: ClusterId) -> NodeRecord {
        NodeRecord::new(NewNode {
            cluster,
            cluster_name: "test".to_owned(),
            founded_ms: None,
            node: FIRST_NODE,
            name: "first".to_owned(),
            role: MemberRole::Controller,
            bind: "127.0.0.1:7000".parse().expect("an address"),
            advertised: Vec::new(),
            controllers: std::collections::BTreeMap::new(),
        })
    }

    /// A checkpoint of version 5 in the store, with this document.
    fn put_manifest(folder: &NodeDataFolder, document: Vec<u8>) {
        put_manifest_of(folder, 1, document);
    }

    fn put_manifest_of(folder: &NodeDataFolder, run: u64, document: Vec<u8>) {
        let digest = Digest([0; 32]);
        let version = CheckpointId { run: RunId(run), version: Step(5) };
        let layer = PieceName { version, layer: LayerId(0), digest };
        let manifest = Manifest {
            version,
            layers: vec![layer],
            document,
            data: digest,
            program: String::new(),
            seed: 0,
        };
        let locations = StoreLocations::new(folder.clone());
        let store = locations.open(&locations.last().expect("readable")).expect("made");
        store.put_manifest(&manifest).expect("room");
    }

    /// A log that adds up to this.
    fn put_log(folder: &NodeDataFolder, state: &State) {
        let members = Members::first(&[FIRST_NODE]);
        let image = SnapshotImage { index: 1, term: 1, members, data: state.encode() };
        let mut log = SledLog::open(Arc::new(RealFileSystem), &folder.log()).expect("a log");
        log.append(&[encode_record(&RaftRecord::Snapshot(image))]).expect("room");
    }

    /// The bits of a run on devices are of their class, whichever worker joins the new cluster
    /// first.
    #[test]
    fn what_a_job_computes_on_is_kept_by_the_log_and_by_manifests() {
        let class = DeviceClass::Cuda(DeviceName::new("H200, sm_90").expect("a name"));
        let job = || Arc::new(JobSpec { device: DeviceKind::Cuda, ..job() });
        let read = |folder: &NodeDataFolder| {
            let state = beginning(&folder.identity()).expect("readable").expect("it is recovered");
            (state.training().runs().class(), state.checkpoints().last().map(|found| found.version))
        };
        let document = |class| {
            let document = CheckpointDocument { spec: job(), record: checkpoint(5), class };
            codec::encode(&document)
        };
        let old = controller(ClusterId(7));
        let before = codec::encode(&(job(), checkpoint(5)));
        for (document, expected) in [(document(Some(class)), Some(class)), (before, None)] {
            let site = tempfile::tempdir().expect("a folder");
            let folder = NodeDataFolder::new(site.path().to_owned());
            put_manifest(&folder, document);
            recover(&folder, &old).expect("a checkpoint is known");
            assert_eq!(read(&folder), (expected, Some(Step(5))));
        }
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        let state = State::recovered(old.cluster, job(), checkpoint(10)).of_class(Some(class));
        put_log(&folder, &state);
        recover(&folder, &old).expect("a checkpoint is known");
        assert_eq!(read(&folder), (Some(class), Some(Step(10))), "as the log tells");
    }

    /// What is on the disk when the process is killed before the checkpoint thread wrote the
    /// manifest.
    #[test]
    fn checkpoint_that_only_the_log_names_is_the_one_to_go_on_from() {
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        let old = controller(ClusterId(7));
        let digest = Digest([0; 32]);
        put_manifest(&folder, codec::encode(&(job(), checkpoint(5))));
        let resumed = |found: Result<RecoveredState, CommandFailure>| {
            let found = found.expect("there is one").resumed;
            found.expect("it goes on").record.version
        };
        assert_eq!(resumed(recovered_state(&folder, old.cluster)), Step(5), "there is no log");
        let other = state_of_store(&folder, Some(digest)).err().expect("of another job");
        assert_eq!(other.code, FailureCode::NotFound);

        let state = State::recovered(old.cluster, Arc::new(job()), checkpoint(10));
        let state = state.held_as(JobPhase::Paused);
        put_log(&folder, &state);
        let kept = recover(&folder, &old).expect("a checkpoint is known");
        assert!(kept.join("log").exists(), "the old log is kept");
        for turn in ["once", "again, with nothing started between"] {
            let state = beginning(&folder.identity()).expect("readable").expect("it is recovered");
            let versions: Vec<Step> =
                state.checkpoints().iter().map(|found| found.version).collect();
            assert_eq!(versions, [Step(10)], "{turn}");
            assert_eq!(state.job().map(|job| job.phase), Some(JobPhase::Paused), "{turn}");
            let node_record =
                NodeRecord::load(&folder.identity()).expect("readable").expect("it is recovered");
            recover(&folder, &node_record).expect("a checkpoint is known");
        }
    }

    /// Whatever the last run is, what others made is kept.
    #[test]
    fn runs_that_ended_come_along_from_a_log_and_from_a_store() {
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        let old = controller(ClusterId(7));
        let spec =
            |run, name: &str| Arc::new(JobSpec { run: RunId(run), name: name.to_owned(), ..job() });
        let ended = RunRecord {
            spec: spec(1, "first"),
            phase: JobPhase::Done,
            class: None,
            checkpoint: checkpoint(5),
        };
        let removed = State::new(old.cluster).with_ended(vec![ended.clone()], RunId(2));
        put_log(&folder, &removed);
        recover(&folder, &old).expect("a run is known");
        let state = beginning(&folder.identity()).expect("readable").expect("it is recovered");
        assert_eq!((state.ended(), state.training().runs().run_last()), (&[ended][..], RunId(2)));
        assert!(state.job().is_none(), "the last run was removed");

        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        for (run, name, at) in [(1, "first", 5), (2, "second", 3)] {
            let spec = spec(run, name);
            let record = checkpoint(at);
            let document = CheckpointDocument { spec, record, class: None };
            put_manifest_of(&folder, run, codec::encode(&document));
        }
        recover(&folder, &old).expect("runs are known");
        let state = beginning(&folder.identity()).expect("readable").expect("it is recovered");
        assert_eq!(state.job().map(|job| job.spec.name.clone()).as_deref(), Some("second"));
        let names: Vec<&str> = state.ended().iter().map(|ended| ended.spec.name.as_str()).collect();
        assert_eq!((names, state.training().runs().run_last()), (vec!["first"], RunId(2)));
    }

    #[test]
    fn log_that_cannot_be_read_changes_nothing() {
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        let mut log = SledLog::open(Arc::new(RealFileSystem), &folder.log()).expect("a log");
        log.append(&[vec![0xff; 8], vec![0xff; 8]]).expect("room");
        drop(log);
        let failure = recover(&folder, &controller(ClusterId(7))).expect_err("it is no log");
        assert!(failure.what.starts_with("the log cannot be read: record 0"), "{failure:?}");
        assert!(folder.log().exists() && !folder.identity().join(BEGINNING).exists());
    }
}
