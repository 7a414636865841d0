//! Texts and weights on a controller: uploaded by who submits a run, handed on to the others.

use std::collections::BTreeMap;
use std::fs;

use zbelastic_transport::{PeerIdentity, PeerRole};
use zbelastic_types::NodeId;

use super::{Arrived, Controller};
use crate::api::{Answer, DataHeld, HexDigest, Refusal, Thing, WrongState};
use crate::cluster::data::{DATA_BYTES_MAX, DamagedCopy, damaged_words, fetch_data, read_if_same};
use crate::cluster::document::{DataName, JobDocument};
use crate::cluster::wire::NodeMessage;
use crate::whole_file;

/// Uploads under way at once; for another one the oldest is given up.
const UPLOADS_MAX: usize = 4;

/// Uploads under way.
#[derive(Default)]
pub(super) struct Uploads {
    /// What is expected, by hash, and what came so far.
    under_way: BTreeMap<HexDigest, (DataName, Vec<u8>)>,
}

/// A text was fetched, or not.
pub(super) struct DataArrived {
    name: DataName,
    damaged: Vec<DamagedCopy>,
    failure: Option<String>,
}

impl Controller {
    /// What of a job's data is not here, if anything is missing.
    pub(super) fn missing_data(&mut self, job: &JobDocument) -> Option<DataHeld> {
        let names = std::iter::once(job.text).chain(job.weights);
        let missing: Vec<DataName> = names.filter(|name| !self.has_data(*name)).collect();
        let name = missing.first()?;
        let hash = HexDigest(name.hash);
        let uploads = &mut self.uploads.under_way;
        if !uploads.contains_key(&hash) && uploads.len() >= UPLOADS_MAX {
            uploads.pop_first();
        }
        let (_, bytes) = uploads.entry(hash).or_insert_with(|| (*name, Vec::new()));
        Some(DataHeld { hash, held: bytes.len() as u64 })
    }

    fn has_data(&self, name: DataName) -> bool {
        let path = self.keeper.data_path(name.hash);
        fs::metadata(path).is_ok_and(|found| found.len() == name.length)
    }

    /// A piece of an upload, in order; the last one completes it.
    pub(super) fn put_data(&mut self, hash: HexDigest, offset: u64, bytes: Vec<u8>) -> Answer {
        let Some((name, held)) = self.uploads.under_way.get_mut(&hash) else {
            return super::answers::not_found(Thing::Text, hash.to_string());
        };
        let (expected, found) = (held.len() as u64, offset);
        if expected != found {
            let state = WrongState::OutOfOrder { expected, found };
            return Answer::Refused(Refusal::WrongState(state));
        }
        let after = expected + bytes.len() as u64;
        let max = name.length.min(DATA_BYTES_MAX);
        if after > max {
            let what = "the text".to_owned();
            return Answer::Refused(Refusal::TooLarge { what, found: after, max });
        }
        held.extend(bytes);
        if after < name.length {
            return Answer::DataWanted(DataHeld { hash, held: after });
        }
        let (name, bytes) = self.uploads.under_way.remove(&hash).expect("found above");
        self.complete(name, &bytes)
    }

    fn complete(&mut self, name: DataName, bytes: &[u8]) -> Answer {
        let found = DataName::of(bytes);
        if found != name {
            let (expected, found) = (HexDigest(name.hash), HexDigest(found.hash));
            let what = "the text that was uploaded".to_owned();
            return Answer::Refused(Refusal::Damaged { what, expected, found });
        }
        match whole_file::write(&self.keeper.data_path(name.hash), bytes) {
            Ok(()) => {
                self.hand_on(name);
                Answer::DataWanted(DataHeld { hash: HexDigest(name.hash), held: name.length })
            }
            Err(error) => {
                let what = format!("the text cannot be kept: {error}");
                Answer::Refused(Refusal::OutOfResource { what })
            }
        }
    }

    /// The other controllers are to have it too.
    fn hand_on(&self, name: DataName) {
        let others = self.core.state().controllers().filter(|node| *node != self.setup.node);
        others.for_each(|node| self.send_node(node, &NodeMessage::KeepData(name)));
    }

    /// Another node has data that is to be here too: another controller what was uploaded to it, a worker
    /// what it found to be damaged here. Of anything but the job's data a worker has no say.
    pub(super) fn keep_data(&mut self, from: PeerIdentity, name: DataName) {
        let job = self.chronicle.job().map(|job| &job.job);
        let is_of_job = job.is_some_and(|job| job.text == name || job.weights == Some(name));
        if from.role == PeerRole::Controller || is_of_job {
            self.fetch(name, vec![from.node]);
        }
    }

    /// A job's data is to be here: a controller that missed its upload asks the others.
    pub(super) fn want_data(&mut self, job: &JobDocument) {
        for name in std::iter::once(job.text).chain(job.weights) {
            if !self.has_data(name) {
                let holders = self.holders().into_iter().filter(|node| *node != self.setup.node);
                self.fetch(name, holders.collect());
            }
        }
    }

    fn fetch(&mut self, name: DataName, holders: Vec<NodeId>) {
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        let arrivals = self.arrivals.clone();
        tokio::spawn(async move {
            let fetched = fetch_data(name, &transport, &keeper, holders).await;
            let (damaged, fetched) = match fetched {
                Ok(found) => (found.damaged, Ok(())),
                Err(error) => (Vec::new(), Err(error.to_string())),
            };
            let path = keeper.data_path(name.hash);
            let is_kept = move || read_if_same(&path, name).is_some();
            let failure = match fetched {
                Ok(()) if tokio::task::spawn_blocking(is_kept).await.unwrap_or(false) => None,
                Ok(()) => Some("the disk does not take it".to_owned()),
                Err(why) => Some(why),
            };
            let _ = arrivals.send(Arrived::Data(DataArrived { name, damaged, failure })).await;
        });
    }

    pub(super) fn handle_data(&mut self, arrived: DataArrived) {
        let DataArrived { name, damaged, failure } = arrived;
        for DamagedCopy { node, name } in damaged {
            self.journal.warn(damaged_words(node, name));
            self.send_node(node, &NodeMessage::KeepData(name));
        }
        match failure {
            None => self.journal.log(format!("text {} is here", HexDigest(name.hash).short())),
            Some(why) => {
                self.journal
                    .log(format!("text {} is not here: {why}", HexDigest(name.hash).short()));
            }
        }
    }
}
