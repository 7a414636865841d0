//! The resources that the processes of a cluster hold of this machine: descriptors, threads, memory, and the
//! files that they keep on disks. None of it may grow with the length of a run, whichever faults
//! are injected into it.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::local_cluster::{ClusterMember, LocalCluster};
use super::resident::peak_bytes;

/// Folders of a node that hold checkpoints and texts. Its event file and its log have limits of
/// their own.
const KEPT: [&str; 2] = ["store", "data"];
/// From the middle of a campaign to its end nothing grows by more than this share of its value in
/// the middle.
const GROWTH_MAX: f64 = 0.5;
/// The growth that is permitted beside that: a checkpoint that is written when it is looked at, or
/// a connection more.
const SLACK: ResourceFootprint =
    ResourceFootprint { descriptors: 64, threads: 64, resident: 128 << 20, kept: 64 << 20 };

/// The growth that is permitted from the first half of a soak to the second: connections to
/// members that come and go, threads that wait for disks, buffers of a checkpoint. That of bytes kept follows from the
/// model.
const SOAK_SLACK: ResourceFootprint =
    ResourceFootprint { descriptors: 32, threads: 32, resident: 64 << 20, kept: 0 };

/// The amounts of the process that holds the most of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceFootprint {
    /// Open files and sockets.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// The peak of its memory, in bytes.
    pub resident: u64,
    /// Bytes of its checkpoints and texts.
    pub kept: u64,
}

/// Something grew that may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceGrowth {
    /// The resource, in words.
    pub what: &'static str,
    /// Its amount before.
    pub before: u64,
    /// Its amount now.
    pub now: u64,
}

impl fmt::Display for ResourceGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, before, now } = self;
        write!(
            f,
            "{what} grew from {before} to {now} between the middle of the campaign and its end"
        )
    }
}

impl ResourceFootprint {
    /// The most that any member of a cluster holds.
    #[must_use]
    pub fn of(cluster: &LocalCluster) -> Self {
        cluster.members().iter().map(Self::of_member).fold(Self::default(), Self::most)
    }

    /// The amounts of a member; of one without a process those of its disk.
    #[must_use]
    pub fn of_member(member: &ClusterMember) -> Self {
        let kept = kept_bytes(&member.spec().data_dir);
        let Some(pid) = member.pid() else { return Self { kept, ..Self::default() } };
        let entries = |folder: &str| {
            fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, |found| found.count() as u64)
        };
        let resident = peak_bytes(pid).unwrap_or(0);
        Self { descriptors: entries("fd"), threads: entries("task"), resident, kept }
    }

    /// The greater of each resource.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            resident: self.resident.max(other.resident),
            kept: self.kept.max(other.kept),
        }
    }

    /// The resource that grew by more than it may since `before`, if anything did.
    #[must_use]
    pub fn growth_since(self, before: Self) -> Option<ResourceGrowth> {
        self.growth_beyond(before, GROWTH_MAX, SLACK)
    }

    /// The resource that grew from the first half of a soak to the second, if anything did, where so many bytes more
    /// may be kept.
    #[must_use]
    pub fn soak_growth_since(self, before: Self, kept_bytes: u64) -> Option<ResourceGrowth> {
        self.growth_beyond(before, 0.0, Self { kept: kept_bytes, ..SOAK_SLACK })
    }

    fn growth_beyond(self, before: Self, share: f64, slack: Self) -> Option<ResourceGrowth> {
        let grown = [
            (
                "open descriptors of a process",
                before.descriptors,
                self.descriptors,
                slack.descriptors,
            ),
            ("threads of a process", before.threads, self.threads, slack.threads),
            ("peak memory of a process, in bytes,", before.resident, self.resident, slack.resident),
            ("what a node keeps, in bytes,", before.kept, self.kept, slack.kept),
        ];
        grown.into_iter().find_map(|(what, before, now, slack)| {
            let is_much = now as f64 > before as f64 * (1.0 + share) + slack as f64;
            is_much.then_some(ResourceGrowth { what, before, now })
        })
    }
}

/// Bytes of the checkpoints and texts in a node's folder.
pub(super) fn kept_bytes(folder: &Path) -> u64 {
    KEPT.iter().filter_map(|name| bytes_below(&folder.join(name)).ok()).sum()
}

/// Files come and go meanwhile; a file that is gone is not counted.
pub(super) fn bytes_below(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += bytes_below(&entry.path()).unwrap_or(0),
            Ok(found) if found.is_file() => bytes += found.len(),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{ResourceFootprint, bytes_below};

    #[test]
    fn growth_with_the_length_of_a_run_is_reported() {
        let before = ResourceFootprint {
            descriptors: 100,
            threads: 20,
            resident: 400 << 20,
            kept: 200 << 20,
        };
        let check = |now: ResourceFootprint, expected: Option<&str>| {
            let found = now.growth_since(before).map(|growth| growth.what);
            assert_eq!(found, expected);
        };
        check(before, None);
        let most = ResourceFootprint {
            descriptors: 214,
            threads: 94,
            resident: 728 << 20,
            kept: 364 << 20,
        };
        check(most, None);
        check(ResourceFootprint { threads: 95, ..before }, Some("threads of a process"));
        check(
            ResourceFootprint { descriptors: 215, ..before },
            Some("open descriptors of a process"),
        );
        check(
            ResourceFootprint { resident: 729 << 20, ..before },
            Some("peak memory of a process, in bytes,"),
        );
        let twice = ResourceFootprint { kept: 400 << 20, ..before };
        check(twice, Some("what a node keeps, in bytes,"));
        let text = twice.growth_since(before).expect("it grew").to_string();
        assert!(
            text.starts_with("what a node keeps, in bytes, grew from 209715200 to 419430400"),
            "{text}"
        );
    }

    #[test]
    fn bytes_are_those_of_files_however_deep() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("chunks/ab")).expect("disk space");
        std::fs::write(folder.path().join("chunks/ab/x"), [0; 7]).expect("disk space");
        std::fs::write(folder.path().join("index"), [0; 5]).expect("disk space");
        assert_eq!(bytes_below(folder.path()).expect("readable"), 12);
    }
}
