//! The record that a node keeps of itself between two starts: which node of which cluster it is,
//! how often it has started, and where it found controllers last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use zbelastic_api::{ADDRESSES_MAX, MemberRole};
use zbelastic_policy::member_addresses::ControllerAddresses;
use zbelastic_types::{ClusterId, NodeId};

use zbelastic_node_folder::checked_json::{self, CheckedError};
use zbelastic_node_folder::{AdminFile, NodeDataFolder};

/// The file, beside the certificates.
const FILE: &str = "node.json";
/// The version of its form.
const VERSION: u32 = 1;
/// Bytes of it at most.
const BYTES_MAX: u64 = 64 << 10;

/// A node's knowledge of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    version: u32,
    /// Id of the cluster, as in its certificates.
    pub cluster: ClusterId,
    /// The name of the cluster.
    pub cluster_name: String,
    /// When it was founded, in milliseconds since 1970, if that is known here.
    pub founded_ms: Option<u64>,
    /// The node's number in the cluster.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// Its role in the cluster.
    pub role: MemberRole,
    /// How often it has started.
    pub boot: u64,
    /// The address at which it listens.
    pub bind: SocketAddr,
    /// Where others reach it.
    pub advertised: Vec<String>,
    /// Where controllers were found last.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// The addresses, as they were agreed on, of controllers that have names among them.
    #[serde(default)]
    pub controller_names: BTreeMap<NodeId, Vec<String>>,
    /// The zone that it runs in; empty if none was configured.
    #[serde(default)]
    pub zone: String,
}

/// Why the record of a node cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NodeRecordError {
    /// The file cannot be read or written, or does not hold the bytes that were written.
    #[error("{FILE} {0}")]
    File(#[from] CheckedError),
    /// Another version of this program wrote it.
    #[error("{FILE} is of version {found}, this program reads version {VERSION}")]
    Version {
        /// The version that the file names.
        found: u32,
    },
}

/// The identity of a node when it begins.
pub struct NewNode {
    /// Id of the cluster, as in its certificates.
    pub cluster: ClusterId,
    /// The name of the cluster.
    pub cluster_name: String,
    /// When it was founded, if that is known.
    pub founded_ms: Option<u64>,
    /// The node's number in the cluster.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// Its role in the cluster.
    pub role: MemberRole,
    /// The address at which it listens.
    pub bind: SocketAddr,
    /// Where others reach it.
    pub advertised: Vec<String>,
    /// Controllers known so far, and where they are reached.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
}

impl NodeRecord {
    /// A node that has not started yet.
    #[must_use]
    pub fn new(beginning: NewNode) -> Self {
        let NewNode { cluster, cluster_name, founded_ms, node, name, role, .. } = beginning;
        let NewNode { bind, advertised, controllers, .. } = beginning;
        Self {
            version: VERSION,
            cluster,
            cluster_name,
            founded_ms,
            node,
            name,
            role,
            boot: 0,
            bind,
            advertised,
            controllers,
            controller_names: BTreeMap::new(),
            zone: String::new(),
        }
    }

    /// Reads the record in `folder`; `None` if nothing is there.
    ///
    /// # Errors
    /// If there is a record that cannot be read.
    pub fn load(folder: &Path) -> Result<Option<Self>, NodeRecordError> {
        let Some(read) = checked_json::read(&folder.join(FILE), BYTES_MAX)? else {
            return Ok(None);
        };
        // First: the checks of a later version are its own affair.
        let version = read.field("version").and_then(serde_json::Value::as_u64);
        match version.and_then(|version| u32::try_from(version).ok()) {
            Some(found) if found != VERSION => Err(NodeRecordError::Version { found }),
            Some(_) | None => Ok(Some(read.checked()?)),
        }
    }

    /// Writes it to `folder`, durably and atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), NodeRecordError> {
        Ok(checked_json::write(&folder.join(FILE), self)?)
    }

    /// Saves where controllers are, for the next start: those of the first start may be replaced.
    pub fn save_controllers(
        &mut self,
        writer: &NodeRecordWriter,
        controllers: ControllerAddresses,
    ) {
        self.controllers = controllers.sockets;
        self.controller_names = controllers.names;
        writer.latest.send_replace(Some(self.clone()));
    }

    /// Where controllers are, as far as that was saved.
    #[must_use]
    pub fn controller_addresses(&self) -> ControllerAddresses {
        let sockets = self.controllers.clone();
        ControllerAddresses { sockets, names: self.controller_names.clone() }
    }

    /// Saves the name of the cluster and when it was founded, which this node did not know.
    pub fn save_founding(
        &mut self,
        writer: &NodeRecordWriter,
        (cluster_name, founded_ms): (String, Option<u64>),
    ) {
        self.cluster_name = cluster_name;
        self.founded_ms = founded_ms;
        writer.latest.send_replace(Some(self.clone()));
    }

    /// The node starts once more: no two starts have the same number, even if one of them
    /// fails.
    ///
    /// # Errors
    /// If that cannot be written down.
    pub fn count_boot(&mut self, folder: &Path) -> Result<(), NodeRecordError> {
        self.boot += 1;
        self.save(folder)
    }
}

/// Writes the findings of a running node, one save after the other and the newest last.
pub struct NodeRecordWriter {
    latest: watch::Sender<Option<NodeRecord>>,
}

impl NodeRecordWriter {
    /// Writes to `folder`, beside the event loop: disks are slow, and nothing waits for this. A
    /// change that cannot be written is written with the next one; a start with the record there
    /// finds those that are left of it.
    #[must_use]
    pub fn start(folder: NodeDataFolder) -> Self {
        let (latest, mut records) = watch::channel(None::<NodeRecord>);
        tokio::spawn(async move {
            while records.changed().await.is_ok() {
                let record = records.borrow_and_update().clone();
                let folder = folder.clone();
                let save = move || {
                    let Some(record) = record else { return };
                    let _ = record.save(&folder.identity());
                    update_admin_file(&folder, &record);
                };
                let _ = tokio::task::spawn_blocking(save).await;
            }
        });
        Self { latest }
    }
}

/// The administrator's commands on this machine use the other controllers as well, once this one is
/// gone.
fn update_admin_file(folder: &NodeDataFolder, record: &NodeRecord) {
    let Ok(admin) = folder.read_admin() else { return };
    let updated = with_controllers(&admin, record);
    if updated != admin {
        let _ = folder.write_admin(&updated);
    }
}

/// The same, with the other controllers of the node's record behind its own address.
#[must_use]
pub fn with_controllers(admin: &AdminFile, record: &NodeRecord) -> AdminFile {
    let others = record.controllers.iter().filter(|(node, _)| **node != record.node);
    let others = others.flat_map(|(_, addresses)| addresses).map(SocketAddr::to_string);
    let mut addresses: Vec<String> = admin.addresses.iter().take(1).cloned().collect();
    for address in others {
        if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    AdminFile { addresses, ..admin.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn record() -> NodeRecord {
        NodeRecord::new(NewNode {
            cluster: ClusterId(7),
            cluster_name: "test".to_owned(),
            founded_ms: None,
            node: NodeId(1),
            name: "first".to_owned(),
            role: MemberRole::Worker,
            bind: "127.0.0.1:7000".parse().expect("an address"),
            advertised: Vec::new(),
            controllers: BTreeMap::new(),
        })
    }

    /// Changes may come faster than a disk writes: two saves at once would write over each other's
    /// file.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_learnt_last_is_what_is_there_in_the_end() {
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        std::fs::create_dir(folder.identity()).expect("room");
        let addresses = vec!["10.0.0.9:7000".to_owned(), "10.0.0.8:7000".to_owned()];
        let admin = AdminFile { name: "wiki".to_owned(), id: "0a".repeat(16), addresses };
        folder.write_admin(&admin).expect("room");
        let writer = NodeRecordWriter::start(folder.clone());
        let mut record = record();
        for port in 1..200 {
            let address = SocketAddr::from(([10, 0, 0, 1], port));
            let sockets = BTreeMap::from([(NodeId(2), vec![address])]);
            let found = ControllerAddresses { sockets, ..ControllerAddresses::default() };
            record.save_controllers(&writer, found);
            if port % 20 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let end = Instant::now() + Duration::from_secs(60);
        let expected = ["10.0.0.9:7000", "10.0.0.1:199"];
        loop {
            let found = NodeRecord::load(&folder.identity()).expect("never half of it");
            let admin = folder.read_admin().expect("never half of it");
            if found.as_ref() == Some(&record) && admin.addresses == expected {
                break;
            }
            assert!(Instant::now() < end, "the last one is not written: {found:?}, {admin:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
