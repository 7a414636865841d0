//! What a node knows of itself between two starts: which node of which cluster it is, how often it
//! has started, and where it found controllers last.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ClusterId, NodeId};

use crate::api::MemberRole;
use crate::whole_file;

/// The file, beside the certificates.
const FILE: &str = "node.json";
/// The version of its form.
const VERSION: u32 = 1;
/// Bytes of it at most.
const BYTES_MAX: u64 = 64 << 10;

/// A node's knowledge of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    version: u32,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its name.
    pub cluster_name: String,
    /// When it was founded, in milliseconds since 1970, if that is known here.
    pub founded_ms: Option<u64>,
    /// The node.
    pub node: NodeId,
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub role: MemberRole,
    /// How often it has started.
    pub boot: u64,
    /// Where it listens.
    pub bind: SocketAddr,
    /// Where others reach it.
    pub advertised: Vec<String>,
    /// Where controllers were found last.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// The zone that it stands in, if somebody said.
    #[serde(default)]
    pub zone: String,
}

/// Why a node does not know itself.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The file cannot be read or written.
    #[error("{FILE}: {0}")]
    File(#[from] io::Error),
    /// It is no such file.
    #[error("{FILE} cannot be read: {0}")]
    Form(#[from] serde_json::Error),
    /// Another version of this program wrote it.
    #[error("{FILE} is of version {found}, this program reads version {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
}

/// What a node is when it begins.
pub struct Beginning {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its name.
    pub cluster_name: String,
    /// When it was founded, if that is known.
    pub founded_ms: Option<u64>,
    /// The node.
    pub node: NodeId,
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub role: MemberRole,
    /// Where it listens.
    pub bind: SocketAddr,
    /// Where others reach it.
    pub advertised: Vec<String>,
    /// Controllers known.
    pub controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
}

impl Home {
    /// A node that has not started yet.
    #[must_use]
    pub fn new(beginning: Beginning) -> Self {
        let Beginning { cluster, cluster_name, founded_ms, node, name, role, .. } = beginning;
        let Beginning { bind, advertised, controllers, .. } = beginning;
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
            zone: String::new(),
        }
    }

    /// Reads what is in `folder`; `None` if nothing is there.
    ///
    /// # Errors
    /// If something is there that cannot be read.
    pub fn load(folder: &Path) -> Result<Option<Self>, HomeError> {
        let Some(bytes) = whole_file::read(&folder.join(FILE), BYTES_MAX)? else {
            return Ok(None);
        };
        let home: Self = serde_json::from_slice(&bytes)?;
        let found = home.version;
        if found == VERSION { Ok(Some(home)) } else { Err(HomeError::Version { found }) }
    }

    /// Writes it to `folder`, durably, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), HomeError> {
        Ok(whole_file::write(&folder.join(FILE), &serde_json::to_vec_pretty(self)?)?)
    }

    /// Remembers where controllers are, for the next start: those of the first start may be gone.
    /// What cannot be written now is written with the next change; a start with what is there finds
    /// whoever is left of it.
    pub fn remember(&mut self, folder: &Path, controllers: BTreeMap<NodeId, Vec<SocketAddr>>) {
        self.controllers = controllers;
        let (home, folder) = (self.clone(), folder.to_owned());
        // Disks take their time, and nobody waits for this.
        tokio::task::spawn_blocking(move || home.save(&folder));
    }

    /// The node starts once more: no two starts have the same number, whatever happens next.
    ///
    /// # Errors
    /// If that cannot be written down.
    pub fn count_boot(&mut self, folder: &Path) -> Result<(), HomeError> {
        self.boot += 1;
        self.save(folder)
    }
}
