//! The mirror beside a controller: `zbelastic mirror`, while the controller leads and its job names a
//! mirror (`checkpoint.mirror`).

use std::thread;
use std::time::Duration;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_config::load_document;
use zbelastic_identity::PeerRole;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_wording::CommandFailure;

use crate::command_connection::exchange;
use crate::named_thread::spawn_named;
use crate::side_process::SideProcess;

/// Between two requests whether there is a job with a mirror: a checkpoint is a minute apart from the
/// next, and both answers are small.
const POLL_PAUSE: Duration = Duration::from_secs(5);

/// Watches in a thread whether the job of the controller in `folder` names a mirror, and has it written
/// while this controller leads.
///
/// # Errors
/// If the system gives no thread.
pub fn start(folder: &NodeDataFolder, record: &NodeRecord) -> Result<(), CommandFailure> {
    let texts = folder.root().join("data").display().to_string();
    let words = ["mirror".to_owned(), "--texts".to_owned(), texts].to_vec();
    // What is copied is an administrator's to read: the state that a cluster begins with.
    let mirror = SideProcess::new(folder, record, ("mirror", PeerRole::Admin), words);
    spawn_named("mirror", move || keep(mirror)).map(drop)
}

fn keep(mut mirror: SideProcess) {
    let mut watch = MirrorWatch::default();
    let mut client = None;
    loop {
        thread::sleep(POLL_PAUSE);
        if client.is_none() {
            // The controller's folder is read again the next time.
            client = connect(&mut mirror).ok();
        }
        let Some(client) = &mut client else { continue };
        match watch.is_wanted(client, mirror.record()) {
            Ok(true) => mirror.keep_running(),
            Ok(false) => mirror.stop(),
            // Whether it leads is known when it answers; a process that runs goes on.
            Err(_) => {}
        }
    }
}

fn connect(mirror: &mut SideProcess) -> Result<ApiClient<'static>, CommandFailure> {
    let folder = mirror.certified_folder()?;
    Ok(ApiClient::new(mirror.addresses(), exchange(&folder)?))
}

/// Whether a run has a mirror, once known.
#[derive(Default)]
struct MirrorWatch {
    known: Option<(u64, bool)>,
}

impl MirrorWatch {
    /// Whether this controller leads, and the newest run has a checkpoint and a mirror.
    fn is_wanted(
        &mut self,
        client: &mut ApiClient<'_>,
        record: &NodeRecord,
    ) -> Result<bool, ApiError> {
        if client.cluster()?.leader != Some(record.node) {
            return Ok(false);
        }
        let Some(newest) = client.runs()?.pop() else { return Ok(false) };
        let Some(step) = newest.checkpoints.last() else { return Ok(false) };
        if let Some((run, has_mirror)) = self.known
            && run == newest.run
        {
            return Ok(has_mirror);
        }
        let document = client.checkpoint(*step)?.document;
        let config = load_document("the run", &document);
        let has_mirror = config.is_ok_and(|loaded| loaded.config.checkpoint.mirror.is_some());
        self.known = Some((newest.run, has_mirror));
        Ok(has_mirror)
    }
}
