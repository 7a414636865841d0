//! Shards of token stores, and what a controller keeps for others: fetched chunk by chunk into a file,
//! and never whole in memory.

use zbelastic_data::store::{TokenStore, find_store};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;
use zbelastic_wire::document::DataName;
use zbelastic_wire::job_store::JobStore;

use super::checkpoint_thread::CheckpointThread;
use super::data::{DamagedCopy, FetchError, damaged_copies, wanted};
use zbelastic_policy::WorkCounter;

/// Stores with their shards on this node's disk.
pub struct FetchedStores {
    /// The stores, in the order of the job.
    pub stores: Vec<TokenStore>,
    /// Copies that were found damaged on the way.
    pub damaged: Vec<DamagedCopy>,
}

/// Where data is fetched from and to, and how its progress is counted.
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

/// Gets the shards of all stores onto this node's disk, or finds them in a store at one of the
/// configured paths, and maps them.
///
/// # Errors
/// If no node has one, or it cannot be used.
pub async fn fetch_stores(
    stores: &[JobStore],
    route: &DataRoute,
    local: &[String],
) -> Result<FetchedStores, FetchError> {
    let mut fetched = FetchedStores { stores: Vec::new(), damaged: Vec::new() };
    for store in stores {
        let wanted = store.manifest.clone();
        let paths = local.to_vec();
        let progress = route.progress.clone();
        let found = tokio::task::spawn_blocking(move || {
            find_store(&wanted, &paths, &|bytes| progress.add(bytes))
        });
        let found = found.await;
        if let Some(found) = found.map_err(|_| FetchError::Interrupted)? {
            fetched.stores.push(found);
            continue;
        }
        let mut paths = Vec::new();
        for shard in store.shards() {
            fetched.damaged.extend(keep_data(shard, route).await?);
            paths.push(route.checkpoint_thread.data_path(shard.hash));
        }
        let manifest = store.manifest.clone();
        let opened =
            tokio::task::spawn_blocking(move || TokenStore::of_shards(manifest, paths)).await;
        fetched.stores.push(opened.map_err(|_| FetchError::Interrupted)??);
    }
    Ok(fetched)
}
