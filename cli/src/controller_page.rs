//! The page beside a controller: `zbelastic ui`, with a viewer's certificate, which can change nothing.

use std::thread;
use std::time::Duration;

use zbelastic_identity::PeerRole;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_wording::CommandFailure;

use crate::args::PageArgs;
use crate::named_thread::spawn_named;
use crate::side_process::SideProcess;

/// Between two looks at the process.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// Starts the page of the controller in `folder`, if there is to be one, and watches it in a thread.
///
/// # Errors
/// If the system gives no thread.
pub fn start(
    args: &PageArgs,
    folder: &NodeDataFolder,
    record: &NodeRecord,
) -> Result<(), CommandFailure> {
    let Some(listen) = args.address.ui else { return Ok(()) };
    let mut words = vec!["ui".to_owned(), "--listen".to_owned(), listen.to_string()];
    words.extend(args.price.iter().flat_map(|price| ["--price".to_owned(), price.to_string()]));
    words.extend(["--history".to_owned(), folder.events().display().to_string()]);
    let mut page = SideProcess::new(folder, record, ("page", PeerRole::Viewer), words);
    let keep = move || {
        loop {
            page.keep_running();
            thread::sleep(POLL_PAUSE);
        }
    };
    spawn_named("page", keep).map(drop)
}
