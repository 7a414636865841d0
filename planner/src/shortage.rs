//! Why a run fits none of the nodes that are there, and what would make it fit: settings that keep less in memory, or
//! more nodes. All of it changes no bit of the result.
//!
//! Only plans on as many nodes as can be used are looked at: what they need is the least that a node has to hold.

use std::fmt;

use zbelastic_kernels::DeviceSizes;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::Recompute;
use zbelastic_trainer::plan::{MemoryPolicy, PassExtent, ScheduleRefusal};
use zbelastic_types::Bytes;

use crate::estimate::PaceEstimate;
use crate::fallback::PlannerJob;
use crate::node_choices::{NodeResources, first_plan, memory_limits};

/// What a run lacks on nodes that it does not fit on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunShortage {
    /// Of the plans on most nodes the one that lacks least.
    nearest: MemoryLack,
    /// The most memory that a node has.
    largest: Bytes,
    /// The limit of the configuration, if that is what the stage exceeds.
    configured: Option<Bytes>,
    /// Changes with each of which the run fits.
    remedies: Vec<Remedy>,
}

/// A stage that is larger than its node, or than the limit of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryLack {
    kind: ScheduleKind,
    needed: Bytes,
    limit: Bytes,
}

impl MemoryLack {
    fn missing(&self) -> u64 {
        self.needed.0.saturating_sub(self.limit.0)
    }
}

/// Settings and nodes with which a run fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Remedy {
    settings: Vec<&'static str>,
    /// Nodes beside those that are there, each with the most memory that one of these has.
    more_nodes: u32,
}

/// A setting that keeps less in memory, and the job with it.
type SparingSetting = (&'static str, PlannerJob);

impl PlannerJob {
    /// What a run lacks on `nodes`, for which no plan was found. `None` if it is not memory.
    #[must_use]
    pub fn shortage(
        &self,
        window: Window,
        nodes: &[NodeResources],
        estimate: &PaceEstimate,
    ) -> Option<RunShortage> {
        let nearest = self.widest(window, nodes, estimate).err().flatten()?;
        let largest = nodes.iter().map(|(_, resources)| resources.memory).max()?;
        let fits = |job: &Self| job.widest(window, nodes, estimate).is_ok();
        let settings = self.sparing_settings();
        let fitting = settings.iter().filter(|(_, job)| fits(job));
        let alone = |(name, _): &SparingSetting| Remedy { settings: vec![*name], more_nodes: 0 };
        let mut remedies: Vec<Remedy> = fitting.map(alone).collect();
        let names: Vec<&'static str> = settings.iter().map(|(name, _)| *name).collect();
        let spare = self.with_all_sparing_settings();
        if remedies.is_empty() && names.len() > 1 && fits(&spare) {
            remedies.push(Remedy { settings: names.clone(), more_nodes: 0 });
        }
        let of = |settings: Vec<&'static str>| {
            move |more_nodes: u32| Remedy { settings: settings.clone(), more_nodes }
        };
        let more = self.more_nodes(window, nodes, estimate).map(of(Vec::new()));
        let more = more.or_else(|| {
            let is_last_resort = remedies.is_empty() && !names.is_empty();
            is_last_resort
                .then(|| spare.more_nodes(window, nodes, estimate))
                .flatten()
                .map(of(names))
        });
        remedies.extend(more);
        let configured = self.stage_bytes_max.filter(|most| *most == nearest.limit);
        Some(RunShortage { nearest, largest, configured, remedies })
    }

    /// The settings that keep less and that the job does not have, each with the job as it is with it.
    fn sparing_settings(&self) -> Vec<SparingSetting> {
        let with = |memory: MemoryPolicy| Self { memory, ..self.clone() };
        let copies =
            (self.copies > 0).then(|| ("elastic.copies=0", Self { copies: 0, ..self.clone() }));
        let recompute = (!self.memory.recompute.is_any()).then(|| {
            let recomputed = PassExtent::WhereNeeded;
            let memory = MemoryPolicy { recompute: Recompute::Full, recomputed, ..self.memory };
            ("memory.recompute=full with memory.recompute_passes=needed", with(memory))
        });
        // What leaves the memory of processors is in their memory still.
        let is_device = match self.sizes {
            DeviceSizes::Cuda(_) => true,
            DeviceSizes::Processors(_) => false,
        };
        let offload = (is_device && self.memory.offloaded == PassExtent::Everywhere).then(|| {
            let memory = MemoryPolicy { offloaded: PassExtent::WhereNeeded, ..self.memory };
            ("memory.offload=needed", with(memory))
        });
        copies.into_iter().chain(recompute).chain(offload).collect()
    }

    fn with_all_sparing_settings(&self) -> Self {
        let mut job = self.clone();
        while let Some((_, sparing)) = job.sparing_settings().into_iter().next() {
            job = sparing;
        }
        job
    }

    /// The least number of nodes, each with the most memory that one of `nodes` has, with which the run fits beside
    /// these. `None` if no number of them suffices: a pipeline has at most a stage for each block.
    fn more_nodes(
        &self,
        window: Window,
        nodes: &[NodeResources],
        estimate: &PaceEstimate,
    ) -> Option<u32> {
        let another = *nodes.iter().max_by_key(|(_, resources)| resources.memory)?;
        let is_largest = |node: &&NodeResources| node.1.memory == another.1.memory;
        let largest: Vec<NodeResources> = nodes.iter().filter(is_largest).copied().collect();
        let fits = |more: u32| {
            [nodes, &largest].into_iter().any(|there| {
                let all = there.iter().copied().chain((0..more).map(|_| another));
                self.widest(window, &all.collect::<Vec<_>>(), estimate).is_ok()
            })
        };
        let most = self.model.blocks.checked_sub(largest.len() as u32).filter(|most| *most > 0)?;
        let doubled = (0..u32::BITS).map(|bit| (1 << bit).min(most));
        let mut tried = doubled.scan(0, |before, more| {
            let is_new = *before < most;
            *before = more;
            is_new.then_some(more)
        });
        let mut enough = tried.find(|more| fits(*more))?;
        let mut too_few = enough / 2;
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if fits(middle) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        Some(enough)
    }

    /// Whether a plan on as many of the nodes as can be used fits.
    ///
    /// # Errors
    /// If none does; with the one that lacks least memory, if memory is what it lacks.
    fn widest(
        &self,
        window: Window,
        nodes: &[NodeResources],
        estimate: &PaceEstimate,
    ) -> Result<(), Option<MemoryLack>> {
        let grids = self.grid_limits().grids(nodes.len() as u32).into_iter();
        let widest = grids.flat_map(|grid| {
            self.fallbacks(grid).into_iter().filter(move |fallback| fallback.grid == grid)
        });
        let tried = widest.map(|fallback| (fallback, fallback.grid.workers()));
        let mut nearest: Option<MemoryLack> = None;
        let found = first_plan(nodes, tried, |fallback, places| {
            let nodes: Vec<NodeResources> = places.iter().map(|at| nodes[*at]).collect();
            let pace = estimate.pace(self, &nodes);
            let limits = memory_limits(self.stage_bytes_max, &nodes);
            let refusals = match self.choose_or_refusals(fallback, window, (&limits, &pace)) {
                Ok(_) => return Ok(()),
                Err(refusals) => refusals,
            };
            let lacks = refusals.iter().filter_map(lack_of);
            nearest = nearest.into_iter().chain(lacks).min_by_key(MemoryLack::missing);
            Err(String::new())
        });
        found.map(|_| ()).map_err(|_| nearest)
    }
}

fn lack_of((kind, refusal): &(ScheduleKind, ScheduleRefusal)) -> Option<MemoryLack> {
    match refusal {
        ScheduleRefusal::Plan(_) => None,
        ScheduleRefusal::Memory { needed, limit, .. } => {
            Some(MemoryLack { kind: *kind, needed: *needed, limit: *limit })
        }
    }
}

impl fmt::Display for RunShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryLack { kind, needed, limit } = self.nearest;
        write!(f, "a stage of {kind} needs {needed}, ")?;
        match self.configured {
            Some(_) => write!(f, "schedule.max_mem is {limit}")?,
            None => write!(f, "its worker has {limit}")?,
        }
        let largest = self.largest;
        let ways = self.remedies.iter().map(|remedy| remedy.text(largest));
        let ways: Vec<String> =
            ways.chain(self.configured.map(|_| "a higher schedule.max_mem".to_owned())).collect();
        match &ways[..] {
            [] => write!(
                f,
                "; no number of workers with {largest} suffices: it takes more memory for each, or a smaller \
                 train.microbatch"
            ),
            [way] => write!(f, "; it fits with {way}"),
            [first @ .., last] => {
                write!(f, "; it fits with {}, or with {last}", first.join(", with "))
            }
        }
    }
}

impl Remedy {
    fn text(&self, memory: Bytes) -> String {
        let settings = self.settings.join(" and ");
        let nodes = match self.more_nodes {
            0 => return settings,
            1 => format!("one more worker of {memory}"),
            many => format!("{many} more workers of {memory}"),
        };
        if settings.is_empty() { nodes } else { format!("{nodes} and {settings}") }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::PlanSearch;
    use crate::search::tests::{job as any_job, nodes};

    const WINDOW: Window = Window::One;

    /// A job of one schedule, which stores passes of several microbatches.
    fn job() -> PlannerJob {
        PlannerJob { kinds: vec![ScheduleKind::OneFOneB], ..any_job() }
    }

    fn nodes_of(memory: &[u64]) -> Vec<NodeResources> {
        let mut all = nodes(&(1..=memory.len() as u64).collect::<Vec<_>>());
        for ((_, resources), bytes) in all.iter_mut().zip(memory) {
            resources.memory = Bytes(*bytes);
        }
        all
    }

    fn solved(job: &PlannerJob, nodes: &[NodeResources]) -> bool {
        PlanSearch::new(Duration::from_millis(10)).solve(job, WINDOW, nodes).is_ok()
    }

    fn shortage(job: &PlannerJob, nodes: &[NodeResources]) -> RunShortage {
        assert!(!solved(job, nodes), "there is no plan");
        let found = job.shortage(WINDOW, nodes, &PaceEstimate::default());
        found.expect("memory is what it lacks")
    }

    /// About the least memory of each of so many nodes on which the job fits.
    fn least_memory(job: &PlannerJob, count: usize) -> u64 {
        let mut enough = 1 << 30;
        let mut too_little = 0;
        while enough - too_little > enough / 64 {
            let middle = u64::midpoint(enough, too_little);
            if solved(job, &nodes_of(&vec![middle; count])) {
                enough = middle;
            } else {
                too_little = middle;
            }
        }
        enough
    }

    #[test]
    fn what_is_named_makes_the_run_fit_and_less_does_not() {
        let copied = job();
        let bare = PlannerJob { copies: 0, ..job() };
        let memory = least_memory(&bare, 2);
        assert!(memory < least_memory(&copied, 2), "copies take memory");
        let two = nodes_of(&[memory; 2]);
        let found = shortage(&copied, &two);
        assert_eq!(found.nearest.limit, Bytes(memory));
        let text = found.to_string();
        assert!(text.starts_with("a stage of "), "{text}");
        assert!(text.contains("; it fits with elastic.copies=0"), "{text}");
        assert!(solved(&bare, &two));
        let least = least_memory(&bare, 4);
        assert!(least < memory, "more workers hold less each");
        let memory = least_memory(&copied, 4);
        let found = shortage(&copied, &nodes_of(&[memory; 2]));
        let more = found.remedies.iter().map(|remedy| remedy.more_nodes).max();
        let more = more.filter(|more| *more > 0).expect("it fits on four");
        let with = |more: u32| nodes_of(&vec![memory; 2 + more as usize]);
        assert!(solved(&copied, &with(more)) && !solved(&copied, &with(more - 1)));
    }

    #[test]
    fn what_no_number_of_workers_holds_is_said() {
        let small = nodes_of(&[1 << 10]);
        let text = shortage(&job(), &small).to_string();
        let expected = "its worker has 1.00 KiB; no number of workers with 1.00 KiB suffices: it takes more memory \
                        for each, or a smaller train.microbatch";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_limit_of_the_configuration_is_named_as_such() {
        let limited = PlannerJob { stage_bytes_max: Some(Bytes(1 << 10)), ..job() };
        let text = shortage(&limited, &nodes_of(&[1 << 40; 2])).to_string();
        assert!(
            text.ends_with("schedule.max_mem is 1.00 KiB; it fits with a higher schedule.max_mem")
        );
    }

    #[test]
    fn passes_that_keep_less_are_named_where_they_suffice() {
        let mut job = PlannerJob { copies: 0, ..job() };
        // Activations are what memory goes to.
        job.batch.microbatch.sequences = 64;
        let spare = job.with_all_sparing_settings();
        assert!(spare.sparing_settings().is_empty());
        let memory = least_memory(&spare, 4);
        assert!(memory < least_memory(&job, 4), "recomputing keeps less");
        let text = shortage(&job, &nodes_of(&[memory; 4])).to_string();
        assert!(
            text.contains("memory.recompute=full with memory.recompute_passes=needed"),
            "{text}"
        );
    }

    #[test]
    fn a_plan_that_is_refused_for_something_else_lacks_no_memory() {
        // Chimera's two directions meet on an even number of stages.
        let odd = PlannerJob { kinds: vec![ScheduleKind::Chimera], ..job() };
        assert_eq!(odd.shortage(WINDOW, &nodes_of(&[1]), &PaceEstimate::default()), None);
        assert_eq!(job().shortage(WINDOW, &[], &PaceEstimate::default()), None);
    }
}
