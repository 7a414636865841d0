//! Data that is kept for others: fetched chunk by chunk into a file, and never whole in memory.

use zbelastic_transport::Transport;
use zbelastic_types::NodeId;
use zbelastic_wire::document::DataName;

use super::checkpoint_thread::CheckpointThread;
use super::data::{DamagedCopy, FetchError, damaged_copies, wanted};
use zbelastic_policy::WorkCounter;

/// Where data is fetched from and to, and how its progress is counted.
#[derive(Clone)]
pub struct DataRoute {
    /// The connections to other nodes.
    pub transport: Transport,
    /// The folder that it is kept in.
    pub checkpoint_thread: CheckpointThread,
    /// The nodes that may have it.
    pub holders: Vec<NodeId>,
    /// Counts bytes that arrived or were hashed.
    pub progress: WorkCounter,
}

/// Keeps data on this node's disk: there is nothing to do if it is there and sound. Yields the
/// copies that were found damaged.
///
/// # Errors
/// If no node has it, or the disk has no space for it.
pub async fn keep_data(name: DataName, route: &DataRoute) -> Result<Vec<DamagedCopy>, FetchError> {
    let nodes = wanted(name, route).keep().await?;
    Ok(damaged_copies(name, nodes))
}
