//! Cores and their kernels, memory and graphics cards.

use zbelastic_types::Bytes;

use crate::commands::doctor::facts::{GpuCard, GpuFacts, KernelFacts, MemoryFacts};
use crate::commands::doctor::finding::{DoctorCheck, DoctorFinding, Severity, level_of};

/// Below this not even the smallest model trains: the process itself, its threads and a window of
/// text need some tens of MiB, and so does a stage.
const MEMORY_LEAST: Bytes = Bytes(256 << 20);
/// A stage of a model of 124 million parameters in a pipeline of four: a quarter of 1.5 GiB of
/// weights and state, as much for layers that are moved and for activations.
const MEMORY_ENOUGH: Bytes = Bytes(2 << 30);

pub(super) fn check_cores(cores: usize) -> DoctorFinding {
    match cores {
        0 | 1 => DoctorFinding::new(DoctorCheck::Cores, Severity::Note, "1 core")
            .why("computing, sending and writing take turns on it"),
        more => DoctorFinding::fine(DoctorCheck::Cores, format!("{more} cores")),
    }
}

pub(super) fn check_kernels(facts: &KernelFacts) -> DoctorFinding {
    let KernelFacts { text, are_vectors, peak_and_share, bf16_peak_and_share } = facts;
    let mut what = text.clone();
    for (factors, peak_and_share) in [("", peak_and_share), ("with bfloat16 ", bf16_peak_and_share)]
    {
        let Some((peak, share)) = peak_and_share else { continue };
        let (gflop, share) = (peak / 1e9, 100.0 * share);
        what += &format!(
            "; {factors}a core reaches {gflop:.0} GFLOP/s, a product {share:.0} % of that"
        );
    }
    if *are_vectors {
        return DoctorFinding::fine(DoctorCheck::Kernels, what);
    }
    DoctorFinding::new(DoctorCheck::Kernels, Severity::Note, what)
        .why("these are for every processor, and slower than those for vector instructions")
        .hint("a processor with AVX2 or more, and no other ZBELASTIC_CPU")
}

pub(super) fn check_memory(facts: &MemoryFacts) -> DoctorFinding {
    let MemoryFacts { machine, available, group } = *facts;
    let Some(total) = machine.into_iter().chain(group).min() else {
        return DoctorFinding::new(
            DoctorCheck::Memory,
            Severity::Note,
            "the system does not report its size",
        )
        .hint("say how much a worker may take: join --memory 8GiB");
    };
    let level = level_of(total, MEMORY_LEAST, MEMORY_ENOUGH);
    let limited = machine.filter(|machine| *machine > total);
    let what = match limited {
        Some(machine) => format!("{total} of {machine}, limited by the control group"),
        None => total.to_string(),
    };
    if level != Severity::Fine {
        return DoctorFinding::new(DoctorCheck::Memory, level, what)
            .why(format!("a small model's stage takes up to {MEMORY_ENOUGH}"))
            .hint("a larger machine, or more workers with smaller stages");
    }
    // The memory that a worker offers without --memory: three quarters.
    let offered = Bytes(total.0 / 4 * 3);
    match available.filter(|available| *available < offered) {
        Some(available) => DoctorFinding::new(DoctorCheck::Memory, Severity::Warning, what)
            .why(format!("{available} are available, and a worker offers {offered}"))
            .hint("say how much a worker may take: join --memory"),
        None if limited.is_some() => DoctorFinding::new(DoctorCheck::Memory, Severity::Note, what),
        None => DoctorFinding::fine(DoctorCheck::Memory, what),
    }
}

pub(super) fn check_gpu(facts: &GpuFacts) -> DoctorFinding {
    let GpuFacts { visible, cards } = facts;
    match cards {
        Err(reason) => unused("the driver cannot be used").why(reason.clone()),
        Ok(cards) if cards.is_empty() && visible.is_empty() => {
            DoctorFinding::fine(DoctorCheck::Gpu, "none; a node computes on processors")
        }
        Ok(cards) if cards.is_empty() => {
            unused(&format!("{} visible, and no driver finds it", visible.join(", "))).why(
                "libcuda.so belongs to the driver, a container must be given both, and \
                 CUDA_VISIBLE_DEVICES may hide devices",
            )
        }
        Ok(cards) => check_cards(cards),
    }
}

fn unused(what: &str) -> DoctorFinding {
    DoctorFinding::new(DoctorCheck::Gpu, Severity::Warning, what)
        .hint("until then a node computes on processors")
}

/// Those that can be used, and why others cannot.
fn check_cards(cards: &[GpuCard]) -> DoctorFinding {
    let usable: Vec<(&str, String)> = { cards.iter() }
        .filter_map(|card| {
            let (what, free) = card.found.as_ref().ok()?;
            Some((card.name.as_str(), format!("{}, {what}, {free} free", card.name)))
        })
        .collect();
    let refused = |card: &GpuCard| Some(format!("{}: {}", card.name, card.found.as_ref().err()?));
    let refused: Vec<String> = cards.iter().filter_map(refused).collect();
    let Some((first, _)) = usable.first() else {
        return unused("none can be used").why(refused.join("; "));
    };
    let descriptions: Vec<&str> =
        usable.iter().map(|(_, description)| description.as_str()).collect();
    let what = format!("{}; join --device {first}", descriptions.join("; "));
    if refused.is_empty() {
        return DoctorFinding::fine(DoctorCheck::Gpu, what);
    }
    DoctorFinding::new(DoctorCheck::Gpu, Severity::Note, what).why(refused.join("; "))
}

#[cfg(test)]
mod tests {
    use super::{
        Bytes, DoctorFinding, GpuCard, GpuFacts, KernelFacts, MEMORY_ENOUGH, MEMORY_LEAST,
        MemoryFacts, Severity, check_cores, check_gpu, check_kernels, check_memory,
    };
    use crate::commands::doctor::finding::Obstacle;

    fn memory(machine: Bytes, available: Bytes, group: Option<Bytes>) -> DoctorFinding {
        let machine = Some(machine);
        let available = Some(available);
        check_memory(&MemoryFacts { machine, available, group })
    }

    #[test]
    fn one_core_is_worth_a_note() {
        assert_eq!(check_cores(1).level, Severity::Note);
        assert_eq!(check_cores(2).level, Severity::Fine);
    }

    #[test]
    fn kernels_without_vectors_are_worth_a_note() {
        let kernels = |are_vectors| KernelFacts {
            text: "portable kernels".into(),
            are_vectors,
            peak_and_share: Some((1.18e11, 0.905)),
            bf16_peak_and_share: None,
        };
        let fine = check_kernels(&kernels(true));
        assert_eq!(fine.level, Severity::Fine);
        let expected = "portable kernels; a core reaches 118 GFLOP/s, a product 90 % of that";
        assert_eq!(fine.what, expected);
        assert_eq!(check_kernels(&kernels(false)).level, Severity::Note);
        let halves = KernelFacts { bf16_peak_and_share: Some((2.36e11, 0.7)), ..kernels(true) };
        let expected =
            format!("{expected}; with bfloat16 a core reaches 236 GFLOP/s, a product 70 % of that");
        assert_eq!(check_kernels(&halves).what, expected);
    }

    #[test]
    fn memory_is_judged_by_its_size() {
        let level = |bytes: u64| memory(Bytes(bytes), Bytes(bytes), None).level;
        assert_eq!(level(MEMORY_LEAST.0 - 1), Severity::Error(Obstacle::TooLittle));
        assert_eq!(level(MEMORY_LEAST.0), Severity::Warning);
        assert_eq!(level(MEMORY_ENOUGH.0 - 1), Severity::Warning);
        assert_eq!(level(MEMORY_ENOUGH.0), Severity::Fine);
        assert_eq!(check_memory(&MemoryFacts::default()).level, Severity::Note);
    }

    #[test]
    fn a_control_group_counts_if_it_is_smaller_than_the_machine() {
        let machine = Bytes(16 << 30);
        let group = |bytes: u64| memory(machine, machine, Some(Bytes(bytes)));
        assert_eq!(group(machine.0).level, Severity::Fine);
        let limited = group(8 << 30);
        assert_eq!(limited.level, Severity::Note);
        assert_eq!(limited.what, "8.00 GiB of 16.0 GiB, limited by the control group");
        assert_eq!(group(MEMORY_LEAST.0 - 1).level, Severity::Error(Obstacle::TooLittle));
    }

    #[test]
    fn what_a_worker_offers_should_be_available() {
        let total = 8 << 30;
        let level = |available: u64| memory(Bytes(total), Bytes(available), None).level;
        assert_eq!(level(6 << 30), Severity::Fine);
        assert_eq!(level((6 << 30) - 1), Severity::Warning);
    }

    #[test]
    fn cards_are_reported_with_what_is_missing() {
        let gpu = |visible: &[&str], cards| {
            let visible = visible.iter().map(|text| (*text).to_owned()).collect();
            check_gpu(&GpuFacts { visible, cards })
        };
        let card = |index: usize, found: Result<&str, &str>| GpuCard {
            name: format!("cuda:{index}"),
            found: found.map(|what| (what.to_owned(), Bytes(139 << 30))).map_err(str::to_owned),
        };
        assert_eq!(gpu(&[], Ok(Vec::new())).level, Severity::Fine);
        let without = gpu(&["/dev/nvidia0"], Ok(Vec::new()));
        assert_eq!(without.level, Severity::Warning);
        assert_eq!(without.what, "/dev/nvidia0 visible, and no driver finds it");
        let old = gpu(&[], Err("update the driver".to_owned()));
        assert_eq!((old.level, old.why.as_deref()), (Severity::Warning, Some("update the driver")));
        let whole = gpu(&["/dev/nvidia0"], Ok(vec![card(0, Ok("H200, sm_90"))]));
        assert_eq!(whole.level, Severity::Fine);
        assert_eq!(whole.what, "cuda:0, H200, sm_90, 139.0 GiB free; join --device cuda:0");
        let half = gpu(&[], Ok(vec![card(0, Ok("H200, sm_90")), card(1, Err("too old"))]));
        assert_eq!((half.level, half.why.as_deref()), (Severity::Note, Some("cuda:1: too old")));
        assert_eq!((&half.what, half.hint), (&whole.what, None));
        assert_eq!(gpu(&[], Ok(vec![card(0, Err("too old"))])).what, "none can be used");
    }
}
