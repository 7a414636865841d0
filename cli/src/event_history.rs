//! Events that a controller's folder keeps, with which a page begins: the controller's memory has
//! those since its start, and no more than some thousand of them.

use std::path::Path;

use zbelastic_api::{ClusterEvent, EVENTS_MAX};
use zbelastic_whole_file::last_lines;

/// Bytes at the end of the files that are read: twice what the 20,000 steps of a page take at some
/// 400 bytes each.
const HISTORY_BYTES_MAX: u64 = 16 << 20;
/// Events that are sent at once: as many as a controller sends.
const BATCH_EVENTS: usize = EVENTS_MAX as usize;

/// Reads the events in `file` (`events.jsonl`) and in the one before it (`events.jsonl.1`), and
/// sends them oldest first. Returns the time of the last one in milliseconds since 1970. A line that
/// is torn, or of a newer program, is left out; so is a file that cannot be read.
pub fn send_history(file: &Path, send: &mut dyn FnMut(Vec<ClusterEvent>) -> bool) -> Option<u64> {
    let lines = last_lines(file, HISTORY_BYTES_MAX);
    let mut events = lines.filter_map(|line| serde_json::from_slice::<ClusterEvent>(&line).ok());
    let mut newest = None;
    loop {
        let batch: Vec<ClusterEvent> = events.by_ref().take(BATCH_EVENTS).collect();
        newest = newest.max(batch.iter().map(|event| event.at_ms).max());
        if batch.is_empty() || !send(batch) {
            return newest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::EventKind;

    fn line(sequence: u64) -> String {
        let event = ClusterEvent::new(sequence, 1000 + sequence, EventKind::QuorumHeld);
        format!("{}\n", serde_json::to_string(&event).expect("JSON"))
    }

    fn sequences(file: &Path) -> (Vec<u64>, Option<u64>) {
        let mut found = Vec::new();
        let newest = send_history(file, &mut |events| {
            found.extend(events.iter().map(|event| event.sequence));
            true
        });
        (found, newest)
    }

    #[test]
    fn events_of_both_files_are_sent_in_order_and_torn_lines_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events.jsonl");
        assert_eq!(sequences(&file), (vec![], None));
        let torn = &line(4)[..20];
        std::fs::write(folder.path().join("events.jsonl.1"), line(1) + &line(2)).expect("written");
        std::fs::write(&file, format!("{}not one\n{}{torn}", line(3), line(5))).expect("written");
        assert_eq!(sequences(&file), (vec![1, 2, 3, 5], Some(1005)));
    }

    #[test]
    fn the_last_bytes_are_read_and_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events.jsonl");
        let each = line(0).len() as u64;
        let count = HISTORY_BYTES_MAX / each + 9;
        let text: String = (0..count).map(|_| line(7)).collect();
        std::fs::write(&file, text).expect("written");
        let (found, _) = sequences(&file);
        assert_eq!(found.len() as u64, HISTORY_BYTES_MAX / each);
    }
}
