//! Resource limits of this process.

use zbelastic_types::Bytes;

use crate::commands::doctor::facts::{LimitFacts, MemoryFacts};
use crate::commands::doctor::finding::{DoctorCheck, DoctorFinding, Severity, level_of};

/// With fewer a node does not start: log, store, threads' wake-ups and sockets need some fifty.
const OPEN_FILES_LEAST: u64 = 64;
/// Enough for the largest number of peers and pieces under way at once.
const OPEN_FILES_ENOUGH: u64 = 1024;
/// With fewer addresses not even threads and log find a place: a stack reserves 2 MiB, an
/// allocator's arena 64 MiB, and each has several.
const ADDRESSES_LEAST: Bytes = Bytes(1 << 30);

pub(super) fn check_open_files(facts: &LimitFacts) -> DoctorFinding {
    let Some(files) = facts.open_files else {
        return DoctorFinding::fine(DoctorCheck::OpenFiles, "unlimited");
    };
    let level = level_of(files, OPEN_FILES_LEAST, OPEN_FILES_ENOUGH);
    let what = format!("{files} may be open at once");
    if level == Severity::Fine {
        return DoctorFinding::fine(DoctorCheck::OpenFiles, what);
    }
    let can_raise = facts.open_files_max.is_none_or(|most| most >= OPEN_FILES_ENOUGH);
    let hint = if can_raise {
        format!("ulimit -n {OPEN_FILES_ENOUGH}")
    } else {
        format!("raise the hard limit to {OPEN_FILES_ENOUGH}, as in LimitNOFILE= of systemd")
    };
    DoctorFinding::new(DoctorCheck::OpenFiles, level, what)
        .why(format!("log, checkpoints and connections need up to {OPEN_FILES_ENOUGH}"))
        .hint(hint)
}

/// Memory is requested ahead of its use, so as many addresses as there is memory are the least that
/// does not stand in the way.
pub(super) fn check_address_space(limits: &LimitFacts, memory: &MemoryFacts) -> DoctorFinding {
    let Some(addresses) = limits.address_space else {
        return DoctorFinding::fine(DoctorCheck::AddressSpace, "unlimited");
    };
    let memory = memory.machine.into_iter().chain(memory.group).min();
    let enough = memory.unwrap_or(ADDRESSES_LEAST).max(ADDRESSES_LEAST);
    let level = level_of(addresses, ADDRESSES_LEAST, enough);
    let what = format!("limited to {addresses}");
    if level == Severity::Fine {
        return DoctorFinding::fine(DoctorCheck::AddressSpace, what);
    }
    DoctorFinding::new(DoctorCheck::AddressSpace, level, what)
        .why(format!("a node may take addresses of {enough}, and ends when it gets none"))
        .hint("ulimit -v unlimited")
}

#[cfg(test)]
mod tests {
    use super::{
        ADDRESSES_LEAST, Bytes, LimitFacts, MemoryFacts, OPEN_FILES_ENOUGH, OPEN_FILES_LEAST,
        check_address_space, check_open_files,
    };
    use crate::commands::doctor::finding::{Obstacle, Severity};

    #[test]
    fn open_files_are_judged_by_their_number() {
        let finding = |open_files, open_files_max| {
            check_open_files(&LimitFacts { open_files, open_files_max, ..LimitFacts::default() })
        };
        let level = |files| finding(Some(files), None).level;
        assert_eq!(level(OPEN_FILES_LEAST - 1), Severity::Error(Obstacle::TooLittle));
        assert_eq!(level(OPEN_FILES_LEAST), Severity::Warning);
        assert_eq!(level(OPEN_FILES_ENOUGH - 1), Severity::Warning);
        assert_eq!(level(OPEN_FILES_ENOUGH), Severity::Fine);
        assert_eq!(finding(None, None).level, Severity::Fine);
        let hint = |most| finding(Some(256), Some(most)).hint.expect("a hint");
        assert!(hint(OPEN_FILES_ENOUGH).starts_with("ulimit"));
        assert!(hint(OPEN_FILES_ENOUGH - 1).starts_with("raise the hard limit"));
    }

    #[test]
    fn addresses_are_judged_beside_the_memory() {
        let memory = MemoryFacts { machine: Some(Bytes(8 << 30)), ..MemoryFacts::default() };
        let level = |addresses: Option<u64>, memory: &MemoryFacts| {
            let address_space = addresses.map(Bytes);
            check_address_space(&LimitFacts { address_space, ..LimitFacts::default() }, memory)
                .level
        };
        assert_eq!(level(None, &memory), Severity::Fine);
        let least = ADDRESSES_LEAST.0;
        assert_eq!(level(Some(least - 1), &memory), Severity::Error(Obstacle::TooLittle));
        assert_eq!(level(Some(least), &memory), Severity::Warning);
        assert_eq!(level(Some((8 << 30) - 1), &memory), Severity::Warning);
        assert_eq!(level(Some(8 << 30), &memory), Severity::Fine);
        assert_eq!(level(Some(least), &MemoryFacts::default()), Severity::Fine);
    }
}
