//! The devices of a run's workers, and whether its plan fits their memory.

use zbelastic_config::DeviceChoice;
use zbelastic_kernels::cuda::DeviceProbe;
use zbelastic_machine::device::{compile, probe_device};
use zbelastic_machine::{DeviceList, DeviceSelector, core_count, memory_total};
use zbelastic_trainer::model::{ModelConfig, model_size};
use zbelastic_trainer::plan::StageMemory;
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

/// The devices that the workers of a run compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunDevices {
    /// The cores of this machine.
    Cpu,
    /// NVIDIA devices, dealt out to stages in turn.
    Cuda(Vec<DeviceProbe>),
}

/// How workers share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSharing {
    /// As threads of one process, which opens it once.
    Threads,
    /// As processes of their own.
    Processes,
}

/// The memory that a driver reserves of a device for another process that opens it, beside the
/// bytes its stage is counted with. It was chosen: drivers reserve a third to half a gibibyte for a
/// process on the devices that kernels run on, and it was not measured here. The memory of the
/// first one is gone when free memory is read.
const PROCESS_BYTES: u64 = 512 << 20;

impl RunDevices {
    /// Finds the named devices; without a name the first of its kind.
    ///
    /// # Errors
    /// If a device is not there or cannot be used, or the devices give different bits, or kernels
    /// cannot be compiled.
    pub fn find(named: Option<&DeviceList>, kind: DeviceChoice) -> Result<Self, CommandFailure> {
        let indices = match (named, kind) {
            (Some(DeviceList::Cuda(indices)), _) => indices.clone(),
            (Some(DeviceList::Cpu), _) | (None, DeviceChoice::Cpu) => return Ok(Self::Cpu),
            (None, DeviceChoice::Cuda) => vec![0],
        };
        let probes = indices.into_iter().map(probe_device).collect::<Result<Vec<_>, _>>()?;
        check_one_class(&probes)?;
        // Once, for all: workers are waited for, each as if it had nothing to compile.
        probes.first().map_or(Ok(()), compile)?;
        Ok(Self::Cuda(probes))
    }

    /// The devices' numbers, for stages in turn; none for the CPU.
    #[must_use]
    pub fn indices(&self) -> Vec<usize> {
        match self {
            Self::Cpu => Vec::new(),
            Self::Cuda(probes) => probes.iter().map(|probe| probe.info.index).collect(),
        }
    }

    /// Whether there is the memory that the stages need.
    ///
    /// # Errors
    /// If it is not, where.
    pub fn check_memory(
        &self,
        stages: &[StageMemory],
        model: &ModelConfig,
    ) -> Result<(), CommandFailure> {
        let Self::Cuda(probes) = self else {
            let needed = stages.iter().map(StageMemory::total).sum();
            return match memory_total().filter(|total| needed > *total) {
                Some(total) => Err(machine_failure(stages, (needed, total), model)),
                None => Ok(()),
            };
        };
        for probe in probes {
            // A device that is named twice has the stages of both.
            let is_here =
                |stage: &usize| probes[stage % probes.len()].info.index == probe.info.index;
            // Copies, and buffers for messages under way, lie on the device as well.
            let own = (0..stages.len()).filter(is_here);
            let own: Vec<(usize, Bytes)> = own.map(|it| (it, stages[it].total())).collect();
            if own.iter().map(|(_, needed)| *needed).sum::<Bytes>() > Bytes(probe.free_bytes) {
                return Err(device_failure(probe, &own));
            }
        }
        Ok(())
    }

    /// Memory that a stage may use, if all may use the same.
    #[must_use]
    pub fn share(&self, worker_count: u32, sharing: DeviceSharing) -> Option<Bytes> {
        match self {
            Self::Cpu => memory_total().map(|total| Bytes(total.0 / u64::from(worker_count))),
            Self::Cuda(_) => {
                let parts = self.parts(worker_count, sharing).into_iter();
                parts.map(|part| part.bytes).min()
            }
        }
    }

    /// Memory that each stage may use of its device, which all of a device share alike; nothing for
    /// the CPU, which share the memory of the system. Processes are a cluster, which places any
    /// stage on any worker and so plans all of them within the smallest part: no other part is
    /// larger.
    #[must_use]
    pub fn parts(&self, worker_count: u32, sharing: DeviceSharing) -> Vec<DeviceShare> {
        let Self::Cuda(probes) = self else { return Vec::new() };
        let part = |probe: &DeviceProbe| {
            let stages = self.workers_on(probe, worker_count);
            let others = match sharing {
                DeviceSharing::Threads => 0,
                DeviceSharing::Processes => (stages - 1) * PROCESS_BYTES,
            };
            let bytes = Bytes(probe.free_bytes.saturating_sub(others) / stages);
            let index = probe.info.index;
            DeviceShare { index, free: Bytes(probe.free_bytes), stages, bytes, smallest: index }
        };
        let own = probes.iter().cycle().take(worker_count as usize).map(part);
        match sharing {
            DeviceSharing::Threads => own.collect(),
            DeviceSharing::Processes => within_smallest(own.collect()),
        }
    }

    /// Workers that share a device, of so many.
    fn workers_on(&self, probe: &DeviceProbe, worker_count: u32) -> u64 {
        let indices = self.indices();
        let dealt = indices.iter().cycle().take(worker_count as usize);
        dealt.filter(|index| **index == probe.info.index).count().max(1) as u64
    }

    /// The text of the heading.
    #[must_use]
    pub fn text(&self, threads: usize) -> String {
        match self {
            Self::Cpu => {
                let threads = match threads {
                    1 => "1 thread".to_owned(),
                    count => format!("{count} threads"),
                };
                format!(", each with {threads}, on {} cores", core_count())
            }
            Self::Cuda(probes) => {
                let names =
                    probes.iter().map(|probe| DeviceSelector::Cuda(probe.info.index).to_string());
                let class = probes.first().map(DeviceProbe::class).unwrap_or_default();
                format!(" on {} ({class})", names.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// The parts, none of which is larger than the smallest.
fn within_smallest(mut parts: Vec<DeviceShare>) -> Vec<DeviceShare> {
    let Some(least) = parts.iter().min_by_key(|part| part.bytes).copied() else { return parts };
    for part in parts.iter_mut().filter(|part| part.bytes > least.bytes) {
        (part.bytes, part.smallest) = (least.bytes, least.index);
    }
    parts
}

/// The share of a device's memory that a stage may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Number of the device.
    pub index: usize,
    /// Free memory of the device, for all of its stages.
    pub free: Bytes,
    /// Stages that share it.
    pub stages: u64,
    /// Memory that each of them may use.
    pub bytes: Bytes,
    /// The device with a part as small as this: its own, or that of the cluster's smallest part.
    pub smallest: usize,
}

impl DeviceShare {
    /// A run that does not fit there.
    #[must_use]
    pub fn failure(&self) -> CommandFailure {
        CommandFailure::new(FailureCode::OutOfResource, does_not_fit(self.smallest))
    }

    /// The detail printed for a stage that does not fit into its part.
    #[must_use]
    pub fn detail(&self, kind: &str, stage: usize, needed: Bytes) -> FailureDetail {
        let Self { index, free, stages, bytes, smallest } = self;
        let device = DeviceSelector::Cuda(*index);
        let what = format!("{kind}: stage {stage} needs {needed}, its part of {device} is {bytes}");
        let mut why = match stages {
            1 => format!("{free} are free there"),
            _ => format!("{free} are free there, for {stages} stages"),
        };
        if smallest != index {
            let smallest = DeviceSelector::Cuda(*smallest);
            why += &format!("; processes all take as little as a part of {smallest}");
        }
        FailureDetail::new(what).at(device.to_string()).why(why).hint(WHAT_HELPS)
    }
}

const WHAT_HELPS: &str = "another device beside it, fewer --workers on it, a smaller \
    train.microbatch, train.precision=bf16, memory.recompute=full with \
    memory.recompute_passes=needed, or memory.offload";

fn does_not_fit(index: usize) -> String {
    format!("the run does not fit {}", DeviceSelector::Cuda(index))
}

/// The stages of one run must give the bits of one.
fn check_one_class(probes: &[DeviceProbe]) -> Result<(), CommandFailure> {
    let Some(other) = probes.iter().find(|probe| probe.class() != probes[0].class()) else {
        return Ok(());
    };
    let named = |probe: &DeviceProbe| format!("cuda:{} is {}", probe.info.index, probe.class());
    let detail = FailureDetail::new(format!("{}, {}", named(&probes[0]), named(other)))
        .at("--device")
        .why("the bits of a result depend on the device's model")
        .hint("devices of one model");
    Err(CommandFailure::usage("the command line", vec![detail]))
}

fn device_failure(probe: &DeviceProbe, stages: &[(usize, Bytes)]) -> CommandFailure {
    let device = DeviceSelector::Cuda(probe.info.index);
    let what = does_not_fit(probe.info.index);
    let mut failure = CommandFailure::new(FailureCode::OutOfResource, what);
    let free = Bytes(probe.free_bytes);
    let total = Bytes(probe.info.memory_bytes);
    let needed: Bytes = stages.iter().map(|(_, needed)| *needed).sum();
    let each = stages.iter().map(|(stage, needed)| format!("stage {stage} {needed}"));
    let each = each.collect::<Vec<_>>().join(", ");
    let detail =
        FailureDetail::new(format!("its stages take {needed}, {free} of {total} are free"))
            .at(device.to_string())
            .why(each)
            .hint(WHAT_HELPS);
    failure.details = vec![detail];
    failure
}

fn machine_failure(
    stages: &[StageMemory],
    (needed, total): (Bytes, Bytes),
    model: &ModelConfig,
) -> CommandFailure {
    let mut failure =
        CommandFailure::new(FailureCode::OutOfResource, "the run does not fit this machine");
    let (_, parameters) = model_size(model);
    let detail = FailureDetail::new(format!("all stages take {needed}, the machine has {total}"))
        .why(format!("weights, moments, gradients and candidates of {parameters} parameters, and what passes keep"))
        .hint(
            "memory.recompute=full with memory.recompute_passes=needed, memory.offload, a smaller \
             train.microbatch, --schedule 1f1b, or a smaller model; or workers on other machines, \
             with `init` and `join`",
        );
    failure.details = vec![detail];
    let copies: Bytes = stages.iter().map(|stage| stage.copies).sum();
    if copies > Bytes(0) {
        let without = Bytes(needed.0 - copies.0);
        let fits = if without <= total { "it fits" } else { "it still does not fit" };
        let detail =
            FailureDetail::new(format!("copies of other workers' layers take {copies} of it"))
                .why("training continues from them when a worker is lost")
                .hint(format!("with --set elastic.copies=0 it takes {without}, and {fits}"));
        failure.details.push(detail);
    }
    let islands: Bytes = stages.iter().map(|stage| stage.islands).sum();
    if islands > Bytes(0) {
        let detail =
            FailureDetail::new(format!("weights that islands exchange take {islands} of it"))
                .why("in the last round all layers are sent")
                .hint("an island with workers on several machines, with `init` and `join`");
        failure.details.push(detail);
    }
    failure
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::cuda::{Architecture, DeviceProperties};

    use super::*;

    fn probe(index: usize, name: &str, free_bytes: u64) -> DeviceProbe {
        let info = DeviceProperties {
            index,
            name: name.to_owned(),
            architecture: Architecture::new(9, 0),
            memory_bytes: 1 << 40,
            multiprocessor_count: 132,
        };
        DeviceProbe { info, library_version: 130_100, free_bytes }
    }

    fn stage(device: u64) -> StageMemory {
        let state = Bytes(device);
        let none = Bytes(0);
        StageMemory {
            state,
            stash: none,
            scratch: none,
            messages: none,
            copies: none,
            islands: none,
            fixed: none,
            offload: none,
        }
    }

    #[test]
    fn a_device_holds_the_stages_that_are_dealt_to_it() {
        let model = zbelastic_config::load_document("test", "[model]\npreset = \"tiny\"\n");
        let model = model.expect("legal").config.model;
        let devices_with = |free: [u64; 2]| {
            RunDevices::Cuda((0..2).map(|index| probe(index, "A", free[index])).collect())
        };
        let stages = [stage(5), stage(1), stage(5)];
        assert_eq!(devices_with([10, 1]).check_memory(&stages, &model), Ok(()));
        let failure = devices_with([9, 1]).check_memory(&stages, &model).expect_err("5 and 5 on 9");
        let text = failure.to_string();
        assert_eq!(failure.code, FailureCode::OutOfResource);
        let each = "stage 0 5 B, stage 2 5 B";
        for word in ["cuda:0", "take 10 B", "9 B of", each, "memory.recompute", "memory.offload"] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
        assert_eq!(devices_with([10, 6]).share(3, DeviceSharing::Threads), Some(Bytes(5)));
    }

    #[test]
    fn stages_of_a_device_have_equal_parts_and_processes_the_smallest_everywhere() {
        let free = [2 * PROCESS_BYTES, 100];
        let devices = (0..2).map(|index| probe(index, "A", free[index])).collect();
        let devices = RunDevices::Cuda(devices);
        let parts = |sharing| {
            let parts = devices.parts(3, sharing).into_iter();
            parts.map(|part| (part.index, part.stages, part.bytes.0)).collect::<Vec<_>>()
        };
        let whole = PROCESS_BYTES;
        let half = PROCESS_BYTES / 2;
        assert_eq!(parts(DeviceSharing::Threads), [(0, 2, whole), (1, 1, 100), (0, 2, whole)]);
        assert_eq!(parts(DeviceSharing::Processes), [(0, 2, 100), (1, 1, 100), (0, 2, 100)]);
        let part = devices.parts(3, DeviceSharing::Processes)[0];
        let why = part.detail("1f1b", 0, Bytes(101)).why.expect("there is a reason");
        assert!(why.contains("as little as a part of cuda:1"), "{why}");
        assert!(part.failure().to_string().contains("does not fit cuda:1"), "{part:?}");
        assert_eq!(RunDevices::Cpu.parts(3, DeviceSharing::Threads), []);
        // A device with two processes leaves each half of what the second one's opening leaves.
        let devices = (0..2).map(|index| probe(index, "A", free[0])).collect();
        let parts = RunDevices::Cuda(devices).parts(3, DeviceSharing::Processes).into_iter();
        let parts: Vec<_> = parts.map(|part| (part.bytes.0, part.smallest)).collect();
        assert_eq!(parts, [(half, 0), (half, 0), (half, 0)]);
    }

    #[test]
    fn a_machine_without_memory_for_copies_is_refused_with_what_fits() {
        let model = zbelastic_config::load_document("test", "[model]\npreset = \"tiny\"\n");
        let model = model.expect("legal").config.model;
        let stages = [StageMemory { copies: Bytes(3), ..stage(5) }, stage(4)];
        let text = |total| machine_failure(&stages, (Bytes(12), Bytes(total)), &model).to_string();
        for word in ["take 12 B", "take 3 B of it", "elastic.copies=0 it takes 9 B, and it fits"] {
            assert!(text(9).contains(word), "no {word} in: {}", text(9));
        }
        assert!(text(8).contains("still does not fit"), "{}", text(8));
        let bare = machine_failure(&[stage(5)], (Bytes(5), Bytes(4)), &model).to_string();
        assert!(!bare.contains("copies") && !bare.contains("islands"), "{bare}");
        let island = [StageMemory { islands: Bytes(2), ..stage(5) }];
        let text = machine_failure(&island, (Bytes(7), Bytes(6)), &model).to_string();
        assert!(text.contains("that islands exchange take 2 B of it"), "{text}");
    }

    #[test]
    fn one_run_computes_on_one_model_of_device() {
        assert_eq!(check_one_class(&[probe(0, "A", 1), probe(1, "A", 2)]), Ok(()));
        let failure = check_one_class(&[probe(0, "A", 1), probe(1, "B", 1)]).expect_err("two");
        let text = failure.to_string();
        assert!(text.contains("cuda:0 is A, sm_90, cublasLt 130100, cuda:1 is B"), "{text}");
    }

    #[test]
    fn the_cpu_is_the_default_device() {
        assert_eq!(RunDevices::find(None, DeviceChoice::Cpu), Ok(RunDevices::Cpu));
        assert_eq!(
            RunDevices::find(Some(&DeviceList::Cpu), DeviceChoice::Cpu),
            Ok(RunDevices::Cpu)
        );
    }
}
