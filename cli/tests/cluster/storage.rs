//! What nodes keep on their disks: no more than is needed, wherever there is space, and what is
//! damaged is repaired.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use zbelastic_api::DiskStatus;
use zbelastic_chaos_processes::small_disk;
use zbelastic_chaos_processes::system::own_mounts;

use crate::harness::SpawnedCluster;

/// The files below a folder, in the order of names; none if there is no such folder.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    entries.sort();
    let below = |path: PathBuf| if path.is_dir() { paths(&path) } else { vec![path] };
    entries.into_iter().flat_map(below).collect()
}

/// Number of files below a folder.
pub fn files(folder: &Path) -> usize {
    paths(folder).len()
}

fn chunks(cluster: &SpawnedCluster, node: &str) -> usize {
    files(&cluster.root.path().join(node).join("store/chunks"))
}

/// Nothing is left to be removed afterwards: files stay where they are.
fn collect(cluster: &SpawnedCluster) {
    cluster.wait("an answer", |cluster| cluster.query(|client| client.collect()));
}

fn newest_checkpoint(cluster: &SpawnedCluster) -> Option<u64> {
    cluster.status()?.checkpoints.last().map(|found| found.step)
}

fn reach(cluster: &SpawnedCluster, checkpoint: u64) {
    let found =
        |cluster: &SpawnedCluster| newest_checkpoint(cluster).filter(|at| *at >= checkpoint);
    cluster.wait("a checkpoint", found);
}

/// Sixty checkpoints of which three are kept: no disk has the others.
#[test]
fn no_store_keeps_what_no_checkpoint_needs() {
    const STEPS: u64 = 300;
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    reach(&cluster, 30);
    let nodes = ["controller", "a", "b"];
    let early: Vec<usize> = nodes.iter().map(|node| chunks(&cluster, node)).collect();
    cluster.digest(STEPS);
    for (node, early) in nodes.into_iter().zip(early) {
        let late = chunks(&cluster, node);
        assert!(early > 0 && late <= 2 * early, "{node}: {late} chunks, {early} before");
    }
    let collected = cluster.wait("an answer", |cluster| cluster.query(|client| client.collect()));
    assert_eq!(collected.len(), nodes.len());
    assert!(collected.iter().all(|node| node.error.is_none()), "{collected:?}");
    // A second request finds nothing left to collect, and the answer reports it.
    let second = cluster.wait("an answer", |cluster| cluster.query(|client| client.collect()));
    assert!(second.iter().all(|node| node.chunks == 0 && node.error.is_none()), "{second:?}");
}

#[test]
fn a_store_that_takes_no_more_stops_no_checkpoint_while_others_have_room() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], 100_000);
    reach(&cluster, 10);
    let break_store = |node: &str| {
        let folder = cluster.root.path().join(node).join("store/tmp");
        fs::remove_dir_all(&folder).expect("it was there");
    };
    break_store("controller");
    let at = newest_checkpoint(&cluster).expect("there are some");
    reach(&cluster, at + 25);
    // With two of three gone there is no second copy any more, and that is reported at once.
    break_store("a");
    cluster
        .wait_for_warning(|what| what.contains("checkpoint") && what.contains("free disk space"));
}

/// The file of a node's copy of the text.
fn text_file(cluster: &SpawnedCluster, node: &str) -> Option<PathBuf> {
    let folder = cluster.root.path().join(node).join("data");
    let mut entries = fs::read_dir(folder).ok()?.map(|entry| entry.expect("readable").path());
    entries.find(|path| path.extension().is_some_and(|extension| extension == "data"))
}

#[test]
fn a_damaged_copy_of_the_text_keeps_nobody_out_and_is_mended() {
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a"], 100_000);
    cluster.wait("steps", |cluster| cluster.step().filter(|step| *step >= 3));
    cluster.wait("its copy of the text", |cluster| text_file(cluster, "a"));
    let path = text_file(&cluster, "controller").expect("it was uploaded there");
    let sound = fs::read(&path).expect("readable");
    let mut damaged = sound.clone();
    damaged[sound.len() / 2] ^= 1;
    fs::write(&path, &damaged).expect("writable");
    cluster.join("b");
    let path_there = cluster.wait("a new worker's copy", |cluster| text_file(cluster, "b"));
    assert_eq!(fs::read(path_there).expect("readable"), sound);
    cluster.wait("the copy to be mended", |_| fs::read(&path).ok().filter(|now| *now == sound));
    cluster.wait("a plan with both", |cluster| {
        cluster.status()?.plan.filter(|plan| plan.stages.len() == 2)
    });
}

/// The last checkpoint of a run that is over is no longer read, and one of its chunks rots.
#[test]
fn what_rots_at_rest_is_found_and_mended_from_others() {
    const STEPS: u64 = 20;
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.digest(STEPS);
    collect(&cluster);
    let folder = cluster.root.path().join("controller/store/chunks");
    let path = paths(&folder).into_iter().next().expect("it keeps the last checkpoint");
    let sound = fs::read(&path).expect("readable");
    let mut damaged = sound.clone();
    damaged[sound.len() / 2] ^= 1;
    fs::write(&path, &damaged).expect("writable");
    cluster.wait_for_warning(|what| what.contains("is damaged on this node's disk"));
    cluster.wait("the chunk to be mended", |_| fs::read(&path).ok().filter(|now| *now == sound));
}

/// All that the controller keeps rots before anything of it is read again.
#[test]
fn layers_are_exported_although_the_controllers_copies_are_damaged() {
    const STEPS: u64 = 20;
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.digest(STEPS);
    collect(&cluster);
    let folder = cluster.root.path().join("controller/store/chunks");
    let read = |path: PathBuf| fs::read(&path).map(|bytes| (path, bytes)).expect("readable");
    let sound: Vec<(PathBuf, Vec<u8>)> = paths(&folder).into_iter().map(read).collect();
    assert!(!sound.is_empty(), "it keeps the last checkpoint");
    for (path, bytes) in &sound {
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        fs::write(path, &damaged).expect("writable");
    }
    let checkpoint = cluster.query(|client| client.checkpoint(STEPS)).expect("it is there");
    for layer in checkpoint.layers {
        let piece = cluster.query(|client| client.layer_piece(STEPS, layer.layer, 0));
        let piece = piece.unwrap_or_else(|| panic!("layer {} is had elsewhere", layer.layer));
        assert_eq!((piece.total, piece.offset), (layer.bytes.0, 0));
    }
    cluster.wait_for_warning(|what| what.contains("is damaged on this node's disk"));
    let is_sound = |(path, bytes): &(PathBuf, Vec<u8>)| fs::read(path).ok().as_ref() == Some(bytes);
    cluster.wait("all to be mended", |_| sound.iter().all(is_sound).then_some(()));
}

/// The disk of a node's store, as the leader knows it.
fn disk_of(cluster: &SpawnedCluster, name: &str) -> Option<DiskStatus> {
    cluster.status()?.members.into_iter().find(|member| member.name == name)?.disk
}

#[test]
fn a_disk_that_is_low_is_reported_and_takes_only_what_finds_room() {
    if !small_disk::is_possible() {
        println!("skipped: this machine does not let us mount");
        return;
    }
    // What is mounted is seen by this thread and by what it starts.
    let tried = std::thread::spawn(|| {
        own_mounts().expect("it is possible");
        fill_the_disk_of_a_worker();
    });
    tried.join().expect("it passed");
}

/// Fills a disk to the last byte with a file that grows.
fn fill_up(ballast: &Path) {
    let file = fs::File::options().create(true).append(true).open(ballast);
    let mut file = file.expect("a file");
    let mut bytes = 1 << 20;
    while bytes > 0 {
        if file.write_all(&vec![1; bytes]).is_err() {
            bytes /= 2;
        }
    }
}

fn fill_the_disk_of_a_worker() {
    const DISK_MIB: u32 = 64;
    const MIB: u64 = 1 << 20;
    let mut cluster = SpawnedCluster::new();
    let folder = cluster.root.path().join("a");
    small_disk::mount(&folder, DISK_MIB).expect("it is possible");
    cluster.begin(&["a", "b"], 100_000);
    reach(&cluster, 10);
    let is_low =
        |cluster: &SpawnedCluster, low| disk_of(cluster, "a").filter(|disk| disk.low == low);
    let disk = cluster.wait("a report of its room", |cluster| is_low(cluster, false));
    assert_eq!(disk.total.0, u64::from(DISK_MIB) * MIB);
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![1; (disk.free.0 - 4 * MIB) as usize]).expect("room");
    cluster.wait("a report that it is low", |cluster| is_low(cluster, true));
    cluster.wait_for_warning(|what| what.contains("disk of node") && what.contains("is low"));
    let at = newest_checkpoint(&cluster).expect("there are some");
    reach(&cluster, at + 25);
    fs::write(folder.join("more"), vec![1; 2 * MIB as usize]).expect("pieces left room");
    fs::remove_file(&ballast).expect("it is there");
    cluster.wait("a report of room again", |cluster| is_low(cluster, false));
    // Without a byte left not even the index takes that a piece is removed, and the store stops. What is
    // removed before that is filled again.
    let at = newest_checkpoint(&cluster).expect("there are some");
    cluster.wait("checkpoints without it", |cluster| {
        fill_up(&ballast);
        newest_checkpoint(cluster).filter(|newest| *newest >= at + 40)
    });
    fs::remove_file(&ballast).expect("it is there");
    cluster.wait("a checkpoint in its store", |cluster| {
        let status = cluster.status()?;
        let node = status.members.iter().find(|member| member.name == "a")?.id;
        status.checkpoints.last()?.holders.contains(&node).then_some(())
    });
    cluster.nodes.clear();
    let unmounted = Command::new("umount").arg(&folder).status();
    assert!(unmounted.expect("there is an umount").success());
}
