//! Workers of a cluster, each on a device of its own, in this process; the controller is a process.

use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Parser;
use zbelastic_api::{HexDigest, TokenRequest, TokenRole};
use zbelastic_cli::args::{Cli, CliCommand, JoinArgs};
use zbelastic_cli::membership::join_on;
use zbelastic_consensus::class::{DeviceClass, DeviceName};
use zbelastic_consensus::member::Resources;
use zbelastic_kernels::Precision;
use zbelastic_machine::data_fetch::DataSettings;
use zbelastic_node::cluster::WorkerProfile;
use zbelastic_node::cluster::compute::CudaDeviceOpener;
use zbelastic_preemption::NoticeSource;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_types::{Bytes, Digest};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use crate::device::{EmulatedDevice, LaneOrder};
use crate::harness::SpawnedCluster;
use crate::{emulated, serial, text, toml};

const STEPS: u64 = 12;

/// Handle of a worker's thread, with its result.
type WorkerHandle = JoinHandle<Option<CommandFailure>>;

fn join_args(cluster: &SpawnedCluster, name: &str) -> JoinArgs {
    let role = TokenRole::Worker;
    let request = TokenRequest { role, ttl_s: 3600, uses: 1, ephemeral: false, note: None };
    let token = cluster.wait("a token", |cluster| {
        cluster.query(|client| client.create_token(request.clone())).map(|token| token.token)
    });
    let folder = cluster.root.path().join(name);
    let folder = folder.to_str().expect("UTF-8");
    let address = &cluster.addresses[0];
    let line = ["zbelastic", "join", "--cluster", address, "--token", &token, "--name", name];
    let line = line.into_iter().chain(["--data-dir", folder, "--bind", "127.0.0.1:0"]);
    let CliCommand::Join(args) = Cli::try_parse_from(line).expect("a command").command else {
        panic!("join")
    };
    args
}

/// A worker on a device of this class.
fn worker(
    cluster: &SpawnedCluster,
    name: &str,
    class: &str,
    device: &Arc<EmulatedDevice>,
) -> WorkerHandle {
    let args = join_args(cluster, name);
    let class = DeviceClass::Cuda(DeviceName::new(class).expect("a name"));
    // Slow, so that no operation is held for hung.
    let resources = Resources { memory: Bytes(1 << 30), speed_permille: 1, class };
    let means = WorkerProfile {
        resources,
        peak: None,
        data: DataSettings::default(),
        notice_source: NoticeSource::None,
        cloud_zone: None,
    };
    let name = name.to_owned();
    let device = device.clone();
    let machine = CudaDeviceOpener { name: "cuda:0".to_owned(), open: move |_| Ok(device.clone()) };
    let run = move || match join_on(&args, means, machine) {
        Err(CommandError::Failed(failure)) => Some(failure),
        Ok(_) | Err(CommandError::Output(_)) => None,
    };
    std::thread::Builder::new().name(name).spawn(run).expect("a thread")
}

/// A worker that reports more memory than its device has cannot load its stage: its failure is
/// reported to the cluster, which goes on without it.
#[test]
fn a_worker_without_memory_is_excluded_and_reports_the_reason() {
    let device = |room_bytes| EmulatedDevice::new(Precision::Bf16, LaneOrder::Forwards, room_bytes);
    let (Some(large), Some(small)) = (device(1 << 30), device(1 << 20)) else { return };
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&[], 1);
    let _large = worker(&cluster, "large", "NVIDIA H200, sm_90", &large);
    let _small = worker(&cluster, "small", "NVIDIA H200, sm_90", &small);
    cluster.wait("both workers", |cluster| (cluster.status()?.members.len() == 3).then_some(()));
    let found = submitted(&cluster);
    let StateDigest(expected) = serial(&toml(STEPS, Precision::Bf16), &large);
    assert_eq!(found, HexDigest(Digest(expected)));
    let status = cluster.status().expect("an answer");
    let failures: Vec<_> = status.failures.iter().filter(|it| it.name == "small").collect();
    assert!(!failures.is_empty(), "{:?}", status.failures);
    let reason = format!("{:?}", failures[0]);
    assert!(reason.contains("memory"), "{reason}");
}

fn submitted(cluster: &SpawnedCluster) -> HexDigest {
    let toml = toml(STEPS, Precision::Bf16);
    cluster.submit(&toml, &text());
    cluster.digest(STEPS)
}

/// What another class of devices computes is something else, so it has no part in the run; a device
/// that gives up takes its worker with it, and the others go on.
#[test]
fn workers_of_one_class_train_to_the_bits_of_one_device_whichever_gives_up() {
    let device = || emulated(Precision::Bf16, LaneOrder::Forwards);
    let Some(devices) = (0..3).map(|_| device()).collect::<Option<Vec<_>>>() else { return };
    let mut cluster = SpawnedCluster::new();
    // The first worker there is, and the first of its kind.
    cluster.join_all(&["cores"], 2);
    let names = ["a", "b", "c"];
    let mut workers: Vec<WorkerHandle> = Vec::new();
    for (name, device) in names.iter().zip(&devices) {
        workers.push(worker(&cluster, name, "NVIDIA H200, sm_90", device));
        let count = 2 + workers.len();
        cluster
            .wait("a worker", |cluster| (cluster.status()?.members.len() == count).then_some(()));
    }
    let _other = worker(&cluster, "other", "NVIDIA A100, sm_80", &devices[0]);
    cluster.wait("all workers", |cluster| (cluster.status()?.members.len() == 6).then_some(()));
    let breaks = devices[1].clone();
    let found = std::thread::scope(|scope| {
        let watched = &cluster;
        scope.spawn(move || {
            watched.wait("steps", |cluster| cluster.step().filter(|step| *step >= 3));
            breaks.fail();
        });
        submitted(watched)
    });
    let StateDigest(expected) = serial(&toml(STEPS, Precision::Bf16), &devices[0]);
    assert_eq!(found, HexDigest(Digest(expected)));
    let failure = workers.remove(1).join().expect("no panic").expect("its device gave up");
    assert_eq!(failure.code, FailureCode::OutOfResource, "{failure}");
    // A launch finds it, or the thread that waits for a tensor to be sent.
    let text = failure.to_string();
    let is_named = text.contains("cuda:0: cu") && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS");
    assert!(is_named, "{failure}");
    let status = cluster.status().expect("an answer");
    let member = |name: &str| {
        let found = status.members.iter().find(|member| member.name == name);
        found.expect("a member")
    };
    assert_eq!(
        (member("a").device.as_str(), member("cores").device.as_str()),
        ("NVIDIA H200, sm_90", "cpu")
    );
    for name in ["cores", "other"] {
        assert_eq!(member(name).stage, None, "{name}");
    }
    assert_eq!(status.failures.iter().filter(|failure| failure.name == "b").count(), 1);
}
