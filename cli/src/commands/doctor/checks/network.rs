//! Packets, addresses, and whether a cluster answers.

use std::os::unix::ffi::OsStrExt;

use zbelastic_types::Bytes;

use crate::commands::doctor::facts::{ClusterFacts, DialOutcome, Ipv6, NetworkFacts};
use crate::commands::doctor::finding::{DoctorCheck, DoctorFinding, Obstacle, Severity};

/// The socket buffer that a node requests.
const UDP_BUFFER_ASKED: Bytes = Bytes(8 << 20);
/// Below this packets are lost whenever the process does not run for a moment: at 10 Gbit/s, a
/// MiB is there in less than one millisecond.
const UDP_BUFFER_ENOUGH: Bytes = Bytes(1 << 20);
/// The longest path of a Unix socket.
const SOCKET_PATH_BYTES_MAX: usize = 107;

pub(super) fn check_udp_buffer(most: Option<Bytes>) -> DoctorFinding {
    let Some(most) = most else {
        return DoctorFinding::new(
            DoctorCheck::UdpBuffer,
            Severity::Note,
            "the system does not report its limit",
        );
    };
    let what = format!("a socket gets up to {most}");
    let level = if most < UDP_BUFFER_ENOUGH {
        Severity::Warning
    } else if most < UDP_BUFFER_ASKED {
        Severity::Note
    } else {
        return DoctorFinding::fine(DoctorCheck::UdpBuffer, what);
    };
    DoctorFinding::new(DoctorCheck::UdpBuffer, level, what)
        .why(format!(
            "a node requests {UDP_BUFFER_ASKED}; what does not fit is lost and sent again"
        ))
        .hint(format!("sysctl -w net.core.rmem_max={}", UDP_BUFFER_ASKED.0))
}

pub(super) fn check_ipv6(found: Ipv6) -> DoctorFinding {
    let note = |what: &str| {
        DoctorFinding::new(DoctorCheck::Ipv6, Severity::Note, what)
            .why("peers are reached by addresses of the older kind only")
    };
    match found {
        Ipv6::Absent => note("none"),
        Ipv6::LocalOnly => note("no address that leads off this link"),
        Ipv6::Present => DoctorFinding::fine(DoctorCheck::Ipv6, "present"),
    }
}

pub(super) fn check_local_socket(facts: &NetworkFacts) -> DoctorFinding {
    let path = &facts.local_socket;
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let what = format!("its path would have {bytes} bytes: {}", path.display());
        return DoctorFinding::new(
            DoctorCheck::LocalSocket,
            Severity::Error(Obstacle::WrongState),
            what,
        )
        .why(format!("the system takes at most {SOCKET_PATH_BYTES_MAX}"))
        .hint("a data folder with a shorter path");
    }
    match facts.unix_sockets {
        Ok(()) => DoctorFinding::fine(DoctorCheck::LocalSocket, "Unix sockets work"),
        Err(kind) => {
            let what = format!("Unix sockets do not work: {kind}");
            DoctorFinding::new(
                DoctorCheck::LocalSocket,
                Severity::Error(Obstacle::WrongState),
                what,
            )
            .why("processes of one machine talk over them")
            .hint("allow AF_UNIX in the sandbox or container")
        }
    }
}

pub(super) fn check_cluster(facts: &ClusterFacts) -> DoctorFinding {
    let ClusterFacts { address, outcome } = facts;
    match outcome {
        DialOutcome::Reached { took } => {
            let what = format!("{address} answered after {} ms", took.as_millis());
            DoctorFinding::fine(DoctorCheck::Cluster, what)
        }
        DialOutcome::Failed { why } => {
            let what = format!("{address} cannot be reached: {why}");
            DoctorFinding::new(DoctorCheck::Cluster, Severity::Error(Obstacle::WrongState), what)
                .hint(
                    "let UDP to that port through the firewalls, and see that a member runs there",
                )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::{
        Bytes, ClusterFacts, DialOutcome, Ipv6, NetworkFacts, Obstacle, SOCKET_PATH_BYTES_MAX,
        Severity, UDP_BUFFER_ASKED, UDP_BUFFER_ENOUGH, check_cluster, check_ipv6,
        check_local_socket, check_udp_buffer,
    };

    #[test]
    fn buffers_are_judged_by_the_requested_size() {
        let level = |bytes: u64| check_udp_buffer(Some(Bytes(bytes))).level;
        assert_eq!(level(UDP_BUFFER_ENOUGH.0 - 1), Severity::Warning);
        assert_eq!(level(UDP_BUFFER_ENOUGH.0), Severity::Note);
        assert_eq!(level(UDP_BUFFER_ASKED.0 - 1), Severity::Note);
        assert_eq!(level(UDP_BUFFER_ASKED.0), Severity::Fine);
        assert_eq!(check_udp_buffer(None).level, Severity::Note);
    }

    #[test]
    fn addresses_that_lead_nowhere_are_worth_a_note() {
        assert_eq!(check_ipv6(Ipv6::Absent).level, Severity::Note);
        assert_eq!(check_ipv6(Ipv6::LocalOnly).level, Severity::Note);
        assert_eq!(check_ipv6(Ipv6::Present).level, Severity::Fine);
    }

    #[test]
    fn a_local_socket_needs_a_short_path_and_a_system_that_has_them() {
        let level = |bytes: usize, unix_sockets| {
            let local_socket = "/".repeat(bytes).into();
            let receive_buffer_max = None;
            let ipv6 = Ipv6::Absent;
            let facts = NetworkFacts { receive_buffer_max, ipv6, unix_sockets, local_socket };
            check_local_socket(&facts).level
        };
        let error = Severity::Error(Obstacle::WrongState);
        assert_eq!(level(SOCKET_PATH_BYTES_MAX, Ok(())), Severity::Fine);
        assert_eq!(level(SOCKET_PATH_BYTES_MAX + 1, Ok(())), error);
        assert_eq!(level(1, Err(io::ErrorKind::PermissionDenied)), error);
    }

    #[test]
    fn a_cluster_answers_or_the_reason_is_reported() {
        let finding = |outcome| check_cluster(&ClusterFacts { address: "a:7000".into(), outcome });
        let reached = finding(DialOutcome::Reached { took: Duration::from_millis(12) });
        assert_eq!(
            (reached.level, reached.what.as_str()),
            (Severity::Fine, "a:7000 answered after 12 ms")
        );
        let failed = finding(DialOutcome::Failed { why: "it did not answer".into() });
        assert_eq!(failed.level, Severity::Error(Obstacle::WrongState));
        assert_eq!(failed.what, "a:7000 cannot be reached: it did not answer");
    }
}
