//! The faults that this machine lets one inject into a cluster, and those that it does not:
//! reported with every campaign, so that the report does not claim a fault that was not tried.

use std::process::{Command, Stdio};

use super::{namespaces, small_disk};

/// A line for each thing that is not always there.
#[must_use]
pub fn report() -> Vec<String> {
    let there = |name: &str, is_there: bool| {
        format!("{name}: {}", if is_there { "there" } else { "not there" })
    };
    vec![
        there("small disks in memory", small_disk::is_possible()),
        there("network namespaces", namespaces::is_possible()),
        there("nft", succeeds("nft", &["--version"])),
        there("netem", succeeds("unshare", &["-n", "sh", "-c", NETEM])),
    ]
}

/// Within a network namespace of its own.
const NETEM: &str = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms";

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::succeeds;

    #[test]
    fn a_program_that_is_not_there_does_not_succeed() {
        assert!(succeeds("true", &[]));
        assert!(!succeeds("false", &[]));
        assert!(!succeeds("there-is-no-such-program", &[]));
    }
}
