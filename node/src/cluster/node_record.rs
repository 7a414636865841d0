//! Writes what a running node finds of itself and of controllers to its record, beside the event loop.

use tokio::sync::watch;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::{NodeRecord, with_controllers};
use zbelastic_policy::member_addresses::ControllerAddresses;

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

    /// Saves where controllers are, for the next start.
    pub fn save_controllers(&self, record: &mut NodeRecord, controllers: ControllerAddresses) {
        record.set_controllers(controllers);
        self.latest.send_replace(Some(record.clone()));
    }

    /// Saves the name of the cluster and when it was founded, which this node did not know.
    pub fn save_founding(
        &self,
        record: &mut NodeRecord,
        (cluster_name, founded_ms): (String, Option<u64>),
    ) {
        record.cluster_name = cluster_name;
        record.founded_ms = founded_ms;
        self.latest.send_replace(Some(record.clone()));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};

    use zbelastic_api::MemberRole;
    use zbelastic_node_folder::AdminFile;
    use zbelastic_node_folder::node_record::NewNode;
    use zbelastic_types::{ClusterId, NodeId};

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
            writer.save_controllers(&mut record, found);
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
