//! The record that a node keeps of itself between two starts: which node of which cluster it is,
//! how often it has started, and where it found controllers last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zbelastic_api::{ADDRESSES_MAX, MemberRole};
use zbelastic_policy::member_addresses::ControllerAddresses;
use zbelastic_types::{ClusterId, NodeId};

use crate::AdminFile;
use crate::checked_json::{self, CheckedError};

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

    /// Where controllers are, for the next start: those of the first start may be replaced.
    pub fn set_controllers(&mut self, controllers: ControllerAddresses) {
        self.controllers = controllers.sockets;
        self.controller_names = controllers.names;
    }

    /// Where controllers are, as far as that was saved.
    #[must_use]
    pub fn controller_addresses(&self) -> ControllerAddresses {
        let sockets = self.controllers.clone();
        ControllerAddresses { sockets, names: self.controller_names.clone() }
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

/// The administrator's file with the other controllers of the node's record behind its own address.
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
