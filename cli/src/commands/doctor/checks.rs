//! The checks: from facts to their meaning for a node. Each is a function of facts alone.

mod clock;
mod compute;
mod disk;
mod limits;
mod network;

use super::facts::MachineFacts;
use super::finding::DoctorFinding;

/// All findings, in the order in which they are printed.
#[must_use]
pub fn findings(facts: &MachineFacts) -> Vec<DoctorFinding> {
    let MachineFacts {
        cores,
        kernels,
        memory,
        limits,
        network,
        clock,
        disk,
        permissions,
        gpu,
        cluster,
    } = facts;
    let mut found = vec![
        compute::check_cores(*cores),
        compute::check_kernels(kernels),
        compute::check_memory(memory),
        compute::check_gpu(gpu),
        limits::check_open_files(limits),
        limits::check_address_space(limits, memory),
        network::check_udp_buffer(network.receive_buffer_max),
        network::check_ipv6(network.ipv6),
        network::check_local_socket(network),
        clock::check_clock(clock),
    ];
    found.extend(disk::check_disk(disk));
    found.extend(disk::check_permissions(permissions));
    found.extend(cluster.as_ref().map(network::check_cluster));
    found
}
