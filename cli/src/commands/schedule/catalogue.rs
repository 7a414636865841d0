//! The schedules there are, as `docs/schedule-ir.md` lists them.

use std::io::Write;

use serde::Serialize;
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_wording::CommandError;

/// The properties that a schedule is chosen by.
#[derive(Clone, Copy, Debug, Serialize)]
struct CatalogueEntry {
    name: &'static str,
    /// Time in which the stage with the longest span idles.
    idle: &'static str,
    /// Most microbatches that a stage keeps activations of.
    peak_activations: &'static str,
    /// The least, which is the number a stage holds by default.
    chunks_per_stage: u32,
    /// Whether a stage may hold more.
    more_chunks: bool,
    /// How many times the pipeline holds the model.
    replicas: u32,
    /// Slices that a microbatch is cut into by default; 1 where it is not cut.
    slices: u32,
    /// Versions of a chunk's weights that a stage keeps, temporary ones included.
    weight_versions: &'static str,
    synchronous: bool,
    source: &'static str,
}

fn entry(kind: ScheduleKind) -> CatalogueEntry {
    let (idle, peak_activations, source) = match kind {
        ScheduleKind::GPipe => ("(p-1)(F+B+W)", "m", "Huang et al., NeurIPS 2019"),
        ScheduleKind::OneFOneB => {
            ("(p-1)(F+B+W)", "p", "Narayanan et al., SOSP 2019; Fan et al., PPoPP 2021")
        }
        ScheduleKind::Interleaved => ("(p-1)(F+B+W)/v", "p+(p-1)/v", "Narayanan et al., SC 2021"),
        ScheduleKind::ZbH1 => ("(p-1)(F+B-W)", "p", "Qi et al., ICLR 2024"),
        ScheduleKind::ZbH2 => ("(p-1)(F+B-2W)", "2p-1", "Qi et al., ICLR 2024"),
        ScheduleKind::ZbAuto => ("(p-1)(F+B-W)", "p", "Qi et al., ICLR 2024"),
        ScheduleKind::ZbV => ("0 if F = B = W", "p", "Qi et al., arXiv 2401.10241 v1"),
        ScheduleKind::LoopedBfs => ("(p-1)(F+B+W)/v", "m", "Lamy-Poirier, MLSys 2023"),
        ScheduleKind::Gis => ("(p-1)(F+B)/v", "p", "Wan et al., ICML 2025"),
        ScheduleKind::GisH => {
            ("((p-1)(F+B)+(v-1)(F+B-W)p/2)/v", "(p+(v-1)p/2)/v", "Wan et al., ICML 2025")
        }
        ScheduleKind::Po => ("< (p-1)(F+B+W)", "< (p+(v-1)(p/2+2))/v", "Wan et al., ICML 2025"),
        ScheduleKind::VHalf => ("< 3pF/2 if F = B = W", "p/2+1", "Qi et al., NeurIPS 2024"),
        ScheduleKind::VMin => ("< 2pF if F = B = W", "(p+1)/3+1", "Qi et al., NeurIPS 2024"),
        ScheduleKind::OneFOneBV => ("< 5pF/2 if F = B = W", "2p/3+1", "Qi et al., NeurIPS 2024"),
        ScheduleKind::DualPipeV => {
            ("(p-1)(F+B-W)/2", "p+1/2", "DeepSeek-AI, DualPipe, 2025; without overlap")
        }
        ScheduleKind::Gems => ("m(p-1)(B+W)", "1", "Jain et al., SC 2020"),
        ScheduleKind::Chimera => ("(p-2)F if F = B+W", "p", "Li and Hoefler, SC 2021"),
        ScheduleKind::Seq1F1B => ("(p-1)(F+B+W)/n", "1+(p-1)/n", "Sun et al., NAACL 2025"),
        ScheduleKind::PoHalf => ("< (p-1)(F+B+W)", "< ((v+2)p/8+4)/v", "Wan et al., ICML 2025"),
        ScheduleKind::PoFull | ScheduleKind::PoSelective => {
            ("< (p-1)(F+B+W)", "< 5/v", "Wan et al., ICML 2025")
        }
    };
    let chunks_per_stage = kind.chunk_counts().least();
    CatalogueEntry {
        name: kind.name(),
        idle,
        peak_activations,
        chunks_per_stage,
        more_chunks: kind.chunk_counts().allow(chunks_per_stage + 1),
        replicas: kind.replica_count(),
        slices: kind.slice_count(),
        weight_versions: "1",
        synchronous: true,
        source,
    }
}

/// Those without steps: once the pipeline is full, no stage waits by plan.
fn async_entry(kind: AsyncKind) -> CatalogueEntry {
    let (idle, peak_activations, weight_versions, source) = match kind {
        AsyncKind::PipeDream => ("0", "p", "p", "Narayanan et al., SOSP 2019"),
        AsyncKind::PipeDream2Bw => ("0", "p", "2", "Narayanan et al., ICML 2021"),
        AsyncKind::PipeMare => ("0", "p", "2", "Yang et al., MLSys 2021"),
        AsyncKind::XPipe => ("0", "p", "3", "Guan et al., arXiv 1911.04610"),
        AsyncKind::SpecTrain => ("0", "p", "2", "Chen et al., arXiv 1809.02839"),
        AsyncKind::WPipe => ("0", "(m+p)/2", "2 and 1", "Yang et al., ICLR 2022"),
        AsyncKind::AvgPipe => ("below 1F1B's", "n(p+1)", "n+1", "Chen et al., PPoPP 2023"),
        AsyncKind::AmpNet => ("0", "cap", "1", "Gaunt et al., arXiv 1705.09786"),
    };
    CatalogueEntry {
        name: kind.name(),
        idle,
        peak_activations,
        chunks_per_stage: kind.chunks_per_stage(),
        more_chunks: false,
        replicas: 1,
        slices: 1,
        weight_versions,
        synchronous: false,
        source,
    }
}

/// Writes the list of all schedules.
pub fn write(json: bool, out: &mut dyn Write) -> Result<(), CommandError> {
    let without_steps = AsyncKind::ALL.into_iter().map(async_entry);
    let entries: Vec<CatalogueEntry> =
        ScheduleKind::ALL.into_iter().map(entry).chain(without_steps).collect();
    if json {
        let text = serde_json::to_string_pretty(&entries).expect("plain data is JSON");
        writeln!(out, "{text}")?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<13} {:<32} {:<21} {:<7} {:<8} {:<5} source",
        "schedule", "idle", "peak", "chunks", "versions", "sync"
    )?;
    for entry in entries {
        let sync = if entry.synchronous { "yes" } else { "no" };
        let more = if entry.more_chunks { "+" } else { "" };
        let chunks = format!("{}{more}", entry.chunks_per_stage);
        writeln!(
            out,
            "{:<13} {:<32} {:<21} {chunks:<7} {:<8} {sync:<5} {}",
            entry.name, entry.idle, entry.peak_activations, entry.weight_versions, entry.source
        )?;
    }
    writeln!(
        out,
        "\np stages, m microbatches, v chunks a stage (2+: 2 or more, --chunks), n slices of a \
         microbatch\n(2, --slices); F, B, W: times of a whole stage.\nidle: what the busiest stage \
         waits in a step; of gems with an even number of microbatches.\npeak: microbatches whose \
         activations a stage keeps; p/2 of gis-h is rounded up, the quotients of\nv-half, v-min and \
         1f1b-v down. gems and chimera hold the model twice, a chunk of each replica.\nversions: of \
         its weights (n pipelines). sync: trains to the same bits as one process, with two\nreplicas \
         as one process that adds up two; the others to those of one process with the same\n\
         staleness, see docs/schedules.md."
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::asynchronous::{
        AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule, generate_async,
        peak_memory_async, simulate_async,
    };
    use zbelastic_schedule::{ChunkMemory, Costs, ScheduleKind, generate, peak_memory, simulate};

    use super::{async_entry, entry};

    /// The formulas of the list at p = 4, v = 2, n = 2, m = 8 and F, B, W = 10, 11, 8; the limit
    /// for those that say no more.
    fn value(formula: &str) -> f64 {
        match formula {
            "(p-1)(F+B+W)" => 3.0 * 29.0,
            "(p-1)(F+B+W)/v" | "(p-1)(F+B+W)/n" => 3.0 * 14.5,
            "(p-1)(F+B)/v" => 3.0 * 10.5,
            "((p-1)(F+B)+(v-1)(F+B-W)p/2)/v" => (3.0 * 21.0 + 2.0 * 13.0) / 2.0,
            "< (p-1)(F+B+W)" => 3.0 * 29.0,
            "(p-1)(F+B-W)/2" => 3.0 * 6.5,
            "(p-1)(F+B-W)" => 3.0 * 13.0,
            "(p-1)(F+B-2W)" => 3.0 * 5.0,
            "m" => 8.0,
            "p" => 4.0,
            "2p-1" => 7.0,
            "p+(p-1)/v" => 5.5,
            "(p+(v-1)p/2)/v" => 3.0,
            "< (p+(v-1)(p/2+2))/v" => 4.0,
            "< ((v+2)p/8+4)/v" => 3.0,
            "< 5/v" => 2.5,
            "p/2+1" => 3.0,
            "(p+1)/3+1" => 2.0,
            "2p/3+1" => 3.0,
            "p+1/2" => 4.5,
            "m(p-1)(B+W)" => 8.0 * 3.0 * 19.0,
            "1" => 1.0,
            "1+(p-1)/n" => 2.5,
            other => panic!("{other}"),
        }
    }

    fn check(kind: ScheduleKind, formula: &str, found: f64) {
        let stated = value(formula);
        if formula.starts_with("< ") {
            assert!(found < stated, "{kind} {formula}: {found}");
        } else {
            assert_eq!(found, stated, "{kind} {formula}");
        }
    }

    #[test]
    fn the_list_says_what_simulation_says() {
        for kind in ScheduleKind::ALL {
            let program = generate(kind, 4, 8).expect("legal");
            let share = program.placement.chunk_share();
            let chunk = ChunkMemory {
                after_forward: share,
                after_drop: share,
                after_input_gradient: share,
                after_early_weights: share,
            };
            let chunks = vec![chunk; program.placement.chunk_count() as usize];
            let peak = peak_memory(&program, &chunks).into_iter().fold(0.0, f64::max);
            check(kind, entry(kind).peak_activations, peak);
            // Entries that hold for equal times only are tested where the schedules are made.
            if entry(kind).idle.contains(" if ") {
                continue;
            }
            let costs = Costs::even(&program.placement, 10.0, 11.0, 8.0, 0.0);
            let timeline = simulate(&program, &costs, 1).expect("legal");
            check(kind, entry(kind).idle, timeline.cost(0) - 8.0 * 29.0);
        }
    }

    /// At p = 4, m = 8, two pipelines and four microbatches under way; F, B, W = 10, 11, 8.
    #[test]
    fn the_list_says_of_schedules_without_steps_what_simulation_says() {
        let value = |formula: &str| match formula {
            "p" | "cap" => 4.0,
            "(m+p)/2" => 6.0,
            "n(p+1)" => 10.0,
            "n+1" => 3.0,
            // Of two chunks, each a half of a stage.
            "2 and 1" => 1.5,
            other => other.parse().unwrap_or_else(|_| panic!("{other}")),
        };
        for kind in AsyncKind::ALL {
            let request = AsyncRequest {
                kind,
                stage_count: 4,
                minibatch_count: 8,
                microbatch_count: 8,
                replica_count: 2,
                dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 4, update_every: 4 },
                variant: AsyncVariant::Usual,
            };
            let program = generate_async(request).expect("legal");
            let share = program.placement.chunk_share();
            let chunk = ChunkMemory {
                after_forward: share,
                after_drop: share,
                after_input_gradient: share,
                after_early_weights: share,
            };
            let chunks = vec![chunk; program.placement.chunk_count() as usize];
            let peaks = peak_memory_async(&program, &chunks, &[0.0; 4]);
            let entry = async_entry(kind);
            let most = |of: fn(&_) -> f64| peaks.iter().map(of).fold(0.0, f64::max);
            assert_eq!(most(|peak| peak.activations), value(entry.peak_activations), "{kind}");
            assert_eq!(most(|peak| peak.versions), value(entry.weight_versions), "{kind}");
            let costs = Costs::even(&program.placement, 10.0, 11.0, 8.0, 0.0);
            let steady = simulate_async(&program, &costs).expect("legal").steady().expect("full");
            let idle = steady.period - 8.0 * 29.0;
            let most = if entry.idle == "0" { 1e-9 } else { 3.0 * 29.0 };
            assert!((-1e-9..=most).contains(&idle), "{kind} {}: {idle}", entry.idle);
        }
    }
}
