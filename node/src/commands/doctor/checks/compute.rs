//! Cores, memory and graphics cards.

use zbelastic_types::Bytes;

use crate::commands::doctor::facts::{GpuFacts, MemoryFacts};
use crate::commands::doctor::finding::{Check, Finding, Level, level_of};

/// Below this not even the smallest model trains: the process itself, its threads and a window of
/// text take some tens of MiB, and so does a stage.
const MEMORY_LEAST: Bytes = Bytes(256 << 20);
/// A stage of a model of 124 million parameters in a pipeline of four: a quarter of 1.5 GiB of
/// weights and state, as much for what is moved and for activations.
const MEMORY_ENOUGH: Bytes = Bytes(2 << 30);

pub(super) fn check_cores(cores: usize) -> Finding {
    match cores {
        0 | 1 => Finding::new(Check::Cores, Level::Note, "1 core")
            .why("computing, sending and writing take turns on it"),
        more => Finding::fine(Check::Cores, format!("{more} cores")),
    }
}

pub(super) fn check_memory(facts: &MemoryFacts) -> Finding {
    let MemoryFacts { machine, available, group } = *facts;
    let Some(total) = machine.into_iter().chain(group).min() else {
        return Finding::new(Check::Memory, Level::Note, "the system does not tell its size")
            .hint("say how much a worker may take: join --memory 8GiB");
    };
    let level = level_of(total, MEMORY_LEAST, MEMORY_ENOUGH);
    let limited = machine.filter(|machine| *machine > total);
    let what = match limited {
        Some(machine) => format!("{total} of {machine}, limited by the control group"),
        None => total.to_string(),
    };
    if level != Level::Fine {
        return Finding::new(Check::Memory, level, what)
            .why(format!("a small model's stage takes up to {MEMORY_ENOUGH}"))
            .hint("a larger machine, or more workers with smaller stages");
    }
    // What a worker offers when nothing is said: three quarters.
    let offered = Bytes(total.0 / 4 * 3);
    match available.filter(|available| *available < offered) {
        Some(available) => Finding::new(Check::Memory, Level::Warning, what)
            .why(format!("{available} are available, and a worker offers {offered}"))
            .hint("say how much a worker may take: join --memory"),
        None if limited.is_some() => Finding::new(Check::Memory, Level::Note, what),
        None => Finding::fine(Check::Memory, what),
    }
}

pub(super) fn check_gpu(facts: &GpuFacts) -> Finding {
    let on_cpu = "this version computes on the CPU";
    let GpuFacts { has_driver, models, devices } = facts;
    if !devices.is_empty() {
        let names = if models.is_empty() { devices } else { models };
        let what = format!("{} visible and not used", names.join(", "));
        return Finding::new(Check::Gpu, Level::Note, what).why(on_cpu);
    }
    if *has_driver {
        let what = "a driver is loaded, and no device is visible";
        return Finding::new(Check::Gpu, Level::Note, what)
            .why(format!("a container needs to be given its devices; but {on_cpu}"));
    }
    Finding::fine(Check::Gpu, format!("none visible; {on_cpu}"))
}

#[cfg(test)]
mod tests {
    use super::{
        Bytes, Finding, GpuFacts, Level, MEMORY_ENOUGH, MEMORY_LEAST, MemoryFacts, check_cores,
        check_gpu, check_memory,
    };
    use crate::commands::doctor::finding::Obstacle;

    fn memory(machine: Bytes, available: Bytes, group: Option<Bytes>) -> Finding {
        let (machine, available) = (Some(machine), Some(available));
        check_memory(&MemoryFacts { machine, available, group })
    }

    #[test]
    fn one_core_is_worth_a_note() {
        assert_eq!(check_cores(1).level, Level::Note);
        assert_eq!(check_cores(2).level, Level::Fine);
    }

    #[test]
    fn memory_is_judged_by_its_size() {
        let level = |bytes: u64| memory(Bytes(bytes), Bytes(bytes), None).level;
        assert_eq!(level(MEMORY_LEAST.0 - 1), Level::Error(Obstacle::TooLittle));
        assert_eq!(level(MEMORY_LEAST.0), Level::Warning);
        assert_eq!(level(MEMORY_ENOUGH.0 - 1), Level::Warning);
        assert_eq!(level(MEMORY_ENOUGH.0), Level::Fine);
        assert_eq!(check_memory(&MemoryFacts::default()).level, Level::Note);
    }

    #[test]
    fn a_control_group_counts_if_it_is_smaller_than_the_machine() {
        let machine = Bytes(16 << 30);
        let group = |bytes: u64| memory(machine, machine, Some(Bytes(bytes)));
        assert_eq!(group(machine.0).level, Level::Fine);
        let limited = group(8 << 30);
        assert_eq!(limited.level, Level::Note);
        assert_eq!(limited.what, "8.00 GiB of 16.0 GiB, limited by the control group");
        assert_eq!(group(MEMORY_LEAST.0 - 1).level, Level::Error(Obstacle::TooLittle));
    }

    #[test]
    fn what_a_worker_offers_should_be_available() {
        let total = 8 << 30;
        let level = |available: u64| memory(Bytes(total), Bytes(available), None).level;
        assert_eq!(level(6 << 30), Level::Fine);
        assert_eq!(level((6 << 30) - 1), Level::Warning);
    }

    #[test]
    fn cards_are_told_and_not_used() {
        let gpu = |has_driver, models: &[&str], devices: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            check_gpu(&GpuFacts { has_driver, models: owned(models), devices: owned(devices) })
        };
        assert_eq!(gpu(false, &[], &[]).level, Level::Fine);
        assert_eq!(gpu(true, &[], &[]).level, Level::Note);
        let named = gpu(true, &["NVIDIA H200"], &["/dev/nvidia0"]);
        assert_eq!(
            (named.level, named.what.as_str()),
            (Level::Note, "NVIDIA H200 visible and not used")
        );
        assert_eq!(gpu(false, &[], &["/dev/nvidia0"]).what, "/dev/nvidia0 visible and not used");
    }
}
