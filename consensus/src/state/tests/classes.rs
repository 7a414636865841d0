//! A job computes on one class of devices.

use zbelastic_types::{Generation, NodeId, Step};

use crate::checkpoint::CheckpointRecord;
use crate::class::{DeviceClass, DeviceKind, DeviceName};
use crate::contact::Contact;
use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, RESOURCES, spec};
use crate::job::JobSpec;
use crate::member::{MemberChange, Resources, Role};
use crate::plan::PlanRefusal;
use crate::state::State;
use crate::training_status::TrainingStatus;
use crate::validation::Ledger;

fn cuda(name: &str) -> DeviceClass {
    DeviceClass::Cuda(DeviceName::new(name).expect("a name"))
}

/// A job on devices, with a worker of each of these classes, numbered from 1.
fn log(device: DeviceKind, classes: &[DeviceClass]) -> FixtureLog {
    let mut log = FixtureLog::with_job(JobSpec { device, ..spec() }, &[]);
    for (node, class) in (1..).zip(classes) {
        admit(&mut log, node, *class);
    }
    log
}

fn admit(log: &mut FixtureLog, node: u64, class: DeviceClass) {
    let (role, resources) = (Role::Worker, Resources { class, ..RESOURCES });
    let contact = Contact::of_node(NodeId(node));
    let change = MemberChange::Admit { node: NodeId(node), boot: 1, role, resources, contact };
    log.apply(Entry::Members(vec![change]));
}

fn fitting(log: &FixtureLog) -> Vec<u64> {
    log.state.fitting_workers().map(|(holder, _)| holder.node.0).collect()
}

#[test]
fn a_plan_seats_workers_of_the_first_class_of_the_jobs_kind() {
    let classes = [DeviceClass::Processors, cuda("H200"), cuda("A100"), cuda("H200")];
    assert_eq!(fitting(&log(DeviceKind::Processors, &classes)), [1]);
    let mut log = log(DeviceKind::Cuda, &classes);
    assert_eq!(fitting(&log), [2, 4]);
    for (nodes, blamed) in [([2, 3], 3), ([3, 4], 4), ([1, 2], 1), ([2, 1], 1)] {
        let refusal = PlanRefusal::Class { holder: log.holder(blamed) };
        let plan = log.plan(&nodes);
        log.refuse(Entry::Adopt(Box::new(plan)), refusal);
    }
    let plan = log.plan(&[4, 2]);
    log.adopt(plan);
    assert_eq!(log.state.training().runs().class(), Some(cuda("H200")));
}

#[test]
fn who_waits_for_workers_is_told_of_those_that_are_left_out() {
    let log = log(DeviceKind::Cuda, &[DeviceClass::Processors, DeviceClass::Processors]);
    let status = TrainingStatus::of(&log.state, 1);
    let (present, left_out, needed) = (0, 2, 1);
    assert_eq!(status, TrainingStatus::WaitingForWorkers { present, left_out, needed });
    let text = status.to_string();
    assert!(text.contains("0 of 1 are there, 2 on devices that give other bits"), "{text}");
}

/// A new cluster out of an old one's checkpoint makes plans for what the old one computed on,
/// whichever node joins first.
#[test]
fn a_recovered_job_keeps_its_class() {
    let mut log = log(DeviceKind::Cuda, &[cuda("H200")]);
    log.run_plan(&[1]);
    let job = log.state.job().expect("it runs").spec.clone();
    let ledger = Ledger::new(Generation(1), Step(5), 5);
    let checkpoint = CheckpointRecord { version: Step(5), layers: Vec::new(), ledger };
    let recovered = |class| {
        let state = State::recovered(CLUSTER, job.clone(), checkpoint.clone()).of_class(class);
        let mut log = FixtureLog { state };
        admit(&mut log, 1, cuda("A100"));
        admit(&mut log, 2, cuda("H200"));
        log
    };
    assert_eq!(fitting(&recovered(log.state.training().runs().class())), [2]);
    assert_eq!(fitting(&recovered(None)), [1], "of a checkpoint that does not tell");
    let other = Some(DeviceClass::Processors);
    assert_eq!(fitting(&recovered(other)), [1], "what the job cannot be of is not believed");
}

/// Whoever is left, the bits are to be those of the devices that began.
#[test]
fn the_class_of_the_first_plan_is_that_of_all_others() {
    let mut log = log(DeviceKind::Cuda, &[cuda("A100"), cuda("H200")]);
    let plan = log.plan(&[2]);
    log.adopt(plan);
    assert_eq!(fitting(&log), [2], "a plan on the second worker settled it");
    let plan = log.plan(&[1]);
    let refusal = PlanRefusal::Class { holder: log.holder(1) };
    log.refuse(Entry::Adopt(Box::new(plan)), refusal);
    admit(&mut log, 3, cuda("H200"));
    assert_eq!(fitting(&log), [2, 3]);
}
