//! The machines that a plan is for.

use zbelastic_api::{MemberRole, MemberState, MemberStatus, StatusReport};
use zbelastic_config::{NODES_MAX, NetworkSpec, NodeSpec, read_nodes};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::args::PlanArgs;
use crate::commands::reach::connect;

/// The machines that were named.
pub fn machines(args: &PlanArgs, threads: usize) -> Result<NetworkSpec, CommandFailure> {
    let named = args.nodes.as_str();
    if named == "live" {
        let status = connect(&args.client)?.status()?;
        return live(&status, threads);
    }
    if let Ok(count) = named.parse::<usize>() {
        if !(1..=NODES_MAX).contains(&count) {
            let what = format!("expected 1 to {NODES_MAX} nodes, found {count}");
            return Err(CommandFailure::usage(
                "the list of nodes",
                vec![FailureDetail::new(what).at("--nodes")],
            ));
        }
        let node = |index| NodeSpec {
            name: format!("n{index}"),
            speed: 1.0,
            memory: None,
            zone: String::new(),
        };
        let nodes = (0..count).map(node).collect();
        return Ok(NetworkSpec { nodes, latency_s: 0.0, gbit_per_s: None });
    }
    read_nodes(named.as_ref())
}

/// The reported speed of a core of the slowest kind, in thousandths of it.
const CORE_PERMILLE: f64 = 1000.0;

/// The workers there are that may have a stage: those of the pipeline in its order, then those
/// without a stage.
pub fn live_workers(status: &StatusReport) -> Vec<&MemberStatus> {
    let is_there = |standing: &MemberState| match standing {
        MemberState::Present => true,
        MemberState::Draining | MemberState::Lost { .. } => false,
    };
    let workers = status.members.iter();
    // A worker of another device class than the job's has no stage of it.
    let workers =
        workers.filter(|member| member.role == MemberRole::Worker && member.left_out.is_none());
    let mut workers: Vec<_> = workers.filter(|member| is_there(&member.standing)).collect();
    workers.sort_by_key(|member| (member.stage.is_none(), member.stage, member.id));
    workers
}

fn live(status: &StatusReport, threads: usize) -> Result<NetworkSpec, CommandFailure> {
    let workers = live_workers(status);
    if workers.is_empty() {
        let mut failure = CommandFailure::new(FailureCode::WrongState, "the cluster has no worker");
        let hint = "`zbelastic token create --print-join`, or --nodes with a number";
        failure.details = vec![FailureDetail::new("there is nothing to plan for").hint(hint)];
        return Err(failure);
    }
    let here = CORE_PERMILLE * threads as f64;
    let node = |member: &&MemberStatus| NodeSpec {
        name: member.name.clone(),
        speed: f64::from(member.speed_permille.max(1)) / here,
        memory: (member.memory > Bytes(0)).then_some(member.memory),
        zone: member.zone.clone(),
    };
    Ok(NetworkSpec { nodes: workers.iter().map(node).collect(), latency_s: 0.0, gbit_per_s: None })
}
