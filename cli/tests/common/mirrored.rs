//! What is in the mirror of a run.

use std::fs;
use std::path::Path;

/// Steps of the checkpoints that it lists, in their order.
pub fn mirrored(mirror: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(mirror.join("checkpoints")) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut steps: Vec<u64> =
        names.filter_map(|name| name.split_once('-')?.1.parse().ok()).collect();
    steps.sort_unstable();
    steps
}
