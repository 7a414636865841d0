//! Parsers of the system's files: pure, from text to facts.

use std::path::{Component, Path, PathBuf};

/// Folders that a control group lies below at most; more are not read.
const GROUPS_MAX: usize = 32;

/// Files that may hold a limit of memory for a process with this `/proc/self/cgroup`: those of its
/// control group and of every one around it, of both versions.
pub(super) fn group_limit_files(text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        // A group outside of the hierarchy that this process can see begins with steps upwards.
        if group.components().any(|part| !matches!(part, Component::Normal(_))) {
            continue;
        }
        let groups = group.ancestors().take(GROUPS_MAX);
        files.extend(groups.map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

/// The type of the file system that `path`, which is absolute and without links, is on, by
/// `/proc/self/mountinfo`.
pub(super) fn filesystem_of(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        let kind = system.split(' ').next()?;
        let depth = Path::new(&point).components().count();
        path.starts_with(&point).then(|| (depth, kind.to_owned()))
    });
    // Of several at one place, the last covers the others.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// Spaces and the like are written as a backslash and three digits.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Whether a file in `/dev` is a card: `nvidia` and a number. Others are for all cards.
pub(super) fn is_card(name: &str) -> bool {
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a line of `/proc/net/if_inet6` has an address that leads off the link: its scope is 0.
pub(super) fn is_routable(line: &str) -> bool {
    line.split_whitespace().nth(3) == Some("00")
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{filesystem_of, group_limit_files, is_card, is_routable};

    #[test]
    fn a_control_group_is_limited_by_all_around_it() {
        let check = |text: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(group_limit_files(text), expected);
        };
        check("0::/\n", &["/sys/fs/cgroup/memory.max"]);
        let nested = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        check("0::/a/b\n", &nested);
        let old = [
            "/sys/fs/cgroup/memory/job:1/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        check("9:name=systemd:/\n4:cpu,memory:/job:1\n3:cpuset:/a\n", &old);
        check("0::/../../outside\nodd\n", &[]);
    }

    #[test]
    fn a_path_is_on_the_deepest_mount_above_it() {
        let mounts = "\
22 1 0:21 / / rw,relatime - overlay overlay rw
23 22 8:1 / /data rw shared:1 - ext4 /dev/sda1 rw
24 22 0:30 / /data/my\\040runs rw - tmpfs tmpfs rw
25 22 8:2 / /dat rw - xfs /dev/sdb rw
26 22 0:31 / /twice rw - xfs a rw
27 26 0:32 / /twice rw - btrfs b rw
odd line
";
        let check = |path: &str, expected: &str| {
            assert_eq!(filesystem_of(mounts, Path::new(path)).as_deref(), Some(expected), "{path}");
        };
        check("/", "overlay");
        check("/data", "ext4");
        check("/data/runs", "ext4");
        check("/data/my runs/a", "tmpfs");
        check("/database", "overlay");
        check("/twice/a", "btrfs");
        assert_eq!(filesystem_of("", Path::new("/")), None);
    }

    #[test]
    fn names_of_cards_and_lines_of_addresses_are_understood() {
        assert!(is_card("nvidia0") && is_card("nvidia12"));
        assert!(!is_card("nvidia") && !is_card("nvidiactl") && !is_card("nvidia-uvm"));
        assert!(is_routable("fd000000000000000000000000000001 04 40 00 82     eth0"));
        assert!(!is_routable("fe800000000000000000000000000001 04 40 20 80     eth0"));
        assert!(!is_routable("00000000000000000000000000000001 01 80 10 80       lo"));
    }
}
