//! The most memory that a process ever had resident, as the kernel counts it.

use std::fs;

/// The peak of a process's resident memory in bytes; nothing if it is gone.
#[must_use]
pub fn peak_bytes(pid: u32) -> Option<u64> {
    parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{parse, peak_bytes};

    #[test]
    fn the_peak_is_read_in_bytes() {
        assert_eq!(parse("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(parse("VmRSS:\t 1 kB\n"), None);
        assert_eq!(parse("VmHWM:\t many\n"), None);
        assert!(peak_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
    }
}
