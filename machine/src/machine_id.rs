//! A number that all processes of one machine have: a copy on the same machine survives nothing.

use std::fs;

/// Where Linux names the machine, and this start of it: containers of one machine have files of the
/// first kind of their own, or none, and the second in common.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The name that a machine without the file above is known by.
const HOSTNAME: &str = "/etc/hostname";

/// The number of this machine; 0 if it cannot be read.
#[must_use]
pub fn machine_number() -> u64 {
    number([BOOT_ID, HOSTNAME].into_iter().find_map(|path| fs::read(path).ok()).as_deref())
}

fn number(name: Option<&[u8]>) -> u64 {
    let Some(name) = name.filter(|name| !name.trim_ascii().is_empty()) else { return 0 };
    let hash = blake3::hash(name.trim_ascii());
    let (first, _) = hash.as_bytes().split_at(8);
    // 0 stands for a machine that is not known.
    u64::from_le_bytes(first.try_into().expect("eight bytes")).max(1)
}

#[cfg(test)]
mod tests {
    use super::{machine_number, number};

    #[test]
    fn a_machine_has_one_number() {
        assert_eq!(machine_number(), machine_number());
        assert_eq!(number(Some(b"a\n")), number(Some(b"a")));
        assert_ne!(number(Some(b"a")), number(Some(b"b")));
        assert_eq!([number(None), number(Some(b"\n"))], [0, 0]);
    }
}
