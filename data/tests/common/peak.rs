//! The memory of this process.

/// The most memory that this process has had, in bytes, by the system.
pub fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let kibibytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kibibytes * 1024
}
