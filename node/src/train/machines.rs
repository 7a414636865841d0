//! What the workers of a run compute on, and whether its plan fits there.

use zbelastic_kernels::cuda::Probe;
use zbelastic_trainer::model::{ModelConfig, model_size};
use zbelastic_trainer::plan::StageMemory;
use zbelastic_types::Bytes;

use crate::args::{Device, DeviceList};
use crate::config::DeviceKind;
use crate::device::{compile, look_at};
use crate::failure::{Detail, Failure, FailureCode};
use crate::machine::{core_count, memory_total};

/// What the workers of a run compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machines {
    /// This machine's cores.
    Processors,
    /// NVIDIA devices, dealt out to stages in turn.
    Devices(Vec<Probe>),
}

impl Machines {
    /// Looks whether what was named is there; without a name the first of its kind is meant.
    ///
    /// # Errors
    /// If a device is not there or cannot be used, or the devices give different bits, or kernels cannot
    /// be compiled.
    pub fn find(named: Option<&DeviceList>, kind: DeviceKind) -> Result<Self, Failure> {
        let indices = match (named, kind) {
            (Some(DeviceList::Cuda(indices)), _) => indices.clone(),
            (Some(DeviceList::Cpu), _) | (None, DeviceKind::Cpu) => return Ok(Self::Processors),
            (None, DeviceKind::Cuda) => vec![0],
        };
        let probes = indices.into_iter().map(look_at).collect::<Result<Vec<_>, _>>()?;
        check_one_class(&probes)?;
        // Once, for all: workers are waited for, each as if it had nothing to compile.
        probes.first().map_or(Ok(()), compile)?;
        Ok(Self::Devices(probes))
    }

    /// The devices' numbers, for stages in turn; none of processors.
    #[must_use]
    pub fn indices(&self) -> Vec<usize> {
        match self {
            Self::Processors => Vec::new(),
            Self::Devices(probes) => probes.iter().map(|probe| probe.info.index).collect(),
        }
    }

    /// Whether what the stages take is there.
    ///
    /// # Errors
    /// If it is not, where.
    pub fn check_room(&self, stages: &[StageMemory], model: &ModelConfig) -> Result<(), Failure> {
        let Self::Devices(probes) = self else {
            let needed = stages.iter().map(StageMemory::total).sum();
            return match memory_total().filter(|total| needed > *total) {
                Some(total) => Err(machine_failure(needed, total, model)),
                None => Ok(()),
            };
        };
        for probe in probes {
            // A device that is named twice has the stages of both.
            let is_here =
                |stage: &usize| probes[stage % probes.len()].info.index == probe.info.index;
            let own = (0..stages.len()).filter(is_here);
            // Copies, and rooms for what is under way, lie on the device as well.
            let needed = own.map(|stage| stages[stage].total()).sum();
            if needed > Bytes(probe.free_bytes) {
                return Err(device_failure(probe, needed));
            }
        }
        Ok(())
    }

    /// What a stage may take, if all take the same.
    #[must_use]
    pub fn share(&self, worker_count: u32) -> Option<Bytes> {
        match self {
            Self::Processors => {
                memory_total().map(|total| Bytes(total.0 / u64::from(worker_count)))
            }
            Self::Devices(probes) => {
                let share = |probe: &Probe| probe.free_bytes / self.workers_on(probe, worker_count);
                probes.iter().map(share).min().map(Bytes)
            }
        }
    }

    /// Workers that share a device, of so many.
    fn workers_on(&self, probe: &Probe, worker_count: u32) -> u64 {
        let indices = self.indices();
        let dealt = indices.iter().cycle().take(worker_count as usize);
        dealt.filter(|index| **index == probe.info.index).count().max(1) as u64
    }

    /// As a person reads it.
    #[must_use]
    pub fn text(&self, threads: usize) -> String {
        match self {
            Self::Processors => {
                let threads = match threads {
                    1 => "1 thread".to_owned(),
                    count => format!("{count} threads"),
                };
                format!(", each with {threads}, on {} cores", core_count())
            }
            Self::Devices(probes) => {
                let names = probes.iter().map(|probe| Device::Cuda(probe.info.index).to_string());
                let class = probes.first().map(Probe::class).unwrap_or_default();
                format!(" on {} ({class})", names.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// The stages of one run must give the bits of one.
fn check_one_class(probes: &[Probe]) -> Result<(), Failure> {
    let Some(other) = probes.iter().find(|probe| probe.class() != probes[0].class()) else {
        return Ok(());
    };
    let named = |probe: &Probe| format!("cuda:{} is {}", probe.info.index, probe.class());
    let detail = Detail::new(format!("{}, {}", named(&probes[0]), named(other)))
        .at("--device")
        .why("the bits of a result depend on the device's model")
        .hint("devices of one model");
    Err(Failure::usage("the command line", vec![detail]))
}

fn device_failure(probe: &Probe, needed: Bytes) -> Failure {
    let device = Device::Cuda(probe.info.index);
    let what = format!("the run does not fit {device}");
    let mut failure = Failure::new(FailureCode::OutOfResource, what);
    let free = Bytes(probe.free_bytes);
    let total = Bytes(probe.info.memory_bytes);
    let detail = Detail::new(format!("its stages take {needed}, {free} of {total} are free"))
        .at(device.to_string())
        .hint(
            "another device beside it, a smaller train.microbatch, or memory.recompute or \
             memory.offload with schedule.max_mem",
        );
    failure.details = vec![detail];
    failure
}

fn machine_failure(needed: Bytes, total: Bytes, model: &ModelConfig) -> Failure {
    let mut failure = Failure::new(FailureCode::OutOfResource, "the run does not fit this machine");
    let (_, parameters) = model_size(model);
    let detail = Detail::new(format!("all stages take {needed}, the machine has {total}"))
        .why(format!("weights, moments, gradients and candidates of {parameters} parameters, and what passes keep"))
        .hint("a smaller train.microbatch, --schedule 1f1b, or a smaller model");
    failure.details = vec![detail];
    failure
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::cuda::{Architecture, DeviceInfo};

    use super::*;

    fn probe(index: usize, name: &str, free_bytes: u64) -> Probe {
        let info = DeviceInfo {
            index,
            name: name.to_owned(),
            architecture: Architecture::new(9, 0),
            memory_bytes: 1 << 40,
            multiprocessor_count: 132,
        };
        Probe { info, library_version: 130_100, free_bytes }
    }

    fn stage(device: u64) -> StageMemory {
        let state = Bytes(device);
        let none = Bytes(0);
        StageMemory { state, stash: none, scratch: none, messages: none, copies: none, away: none }
    }

    #[test]
    fn a_device_holds_the_stages_that_are_dealt_to_it() {
        let model = crate::config::load_document("test", "[model]\npreset = \"tiny\"\n");
        let model = model.expect("legal").config.model;
        let machines = |free: [u64; 2]| {
            Machines::Devices((0..2).map(|index| probe(index, "A", free[index])).collect())
        };
        let stages = [stage(5), stage(1), stage(5)];
        assert_eq!(machines([10, 1]).check_room(&stages, &model), Ok(()));
        let failure = machines([9, 1]).check_room(&stages, &model).expect_err("5 and 5 on 9");
        let text = failure.to_string();
        assert_eq!(failure.code, FailureCode::OutOfResource);
        for word in ["cuda:0", "take 10 B", "9 B of", "memory.recompute", "memory.offload"] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
        assert_eq!(machines([10, 6]).share(3), Some(Bytes(5)));
    }

    #[test]
    fn one_run_computes_on_one_model_of_device() {
        assert_eq!(check_one_class(&[probe(0, "A", 1), probe(1, "A", 2)]), Ok(()));
        let failure = check_one_class(&[probe(0, "A", 1), probe(1, "B", 1)]).expect_err("two");
        let text = failure.to_string();
        assert!(text.contains("cuda:0 is A, sm_90, cublasLt 130100, cuda:1 is B"), "{text}");
    }

    #[test]
    fn processors_are_what_is_meant_where_nothing_is_said() {
        assert_eq!(Machines::find(None, DeviceKind::Cpu), Ok(Machines::Processors));
        assert_eq!(
            Machines::find(Some(&DeviceList::Cpu), DeviceKind::Cpu),
            Ok(Machines::Processors)
        );
    }
}
