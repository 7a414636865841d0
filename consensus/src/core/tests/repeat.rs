//! The same construction and the same inputs give the same outputs.

use std::sync::Arc;

use super::super::{Input, OperatorCommand};
use super::in_process::{CONTROLLER, InProcessCluster, n};
use crate::fixture::{CLUSTER, spec};
use crate::job::{JobChange, JobSpec};
use crate::message::{Envelope, Message};

/// A run with losses, a worker that goes, and a leader that is cut off for a while.
fn run(loss_permille: u64, between: impl Fn(&mut InProcessCluster)) -> InProcessCluster {
    let mut cluster = InProcessCluster::new(3, 3);
    cluster.loss_permille = loss_permille;
    let spec = JobSpec { step_count: 1000, ..spec() };
    cluster.command(OperatorCommand::Job(JobChange::Start(Arc::new(spec))));
    for round in 0..240 {
        between(&mut cluster);
        match round {
            80 => cluster.cut.extend(cluster.leader()),
            140 => cluster.cut.clear(),
            160 => cluster.cut.extend([n(3)]),
            _ => {}
        }
        cluster.rounds(1);
    }
    cluster
}

#[test]
fn the_same_inputs_give_the_same_outputs() {
    let (first, second) = (run(50, |_| {}), run(50, |_| {}));
    assert!(first.inputs > 2_000, "{} inputs", first.inputs);
    assert_eq!(first.inputs, second.inputs);
    let pairs = first.trace.iter().zip(&second.trace);
    if let Some((one, other)) = pairs.clone().find(|(one, other)| one != other) {
        panic!("expected: {one}\nfound:    {other}");
    }
    assert_eq!(first.trace.len(), second.trace.len());
    let state = first.state();
    assert!(state.history().head().0 > 20 && state.generation().0 > 1, "something happened");
    let other = run(60, |_| {});
    assert_ne!(first.trace, other.trace, "the trace would show another run");
}

/// What is refused leaves no mark but its count: with strangers' messages in between, everything
/// else comes out the same.
#[test]
fn what_is_refused_changes_no_later_output() {
    let disturbed = run(0, |cluster| {
        for node in [CONTROLLER, CONTROLLER + 1, CONTROLLER + 2].map(n) {
            let other =
                crate::member::Holder { node: n(9), incarnation: zbelastic_types::Incarnation(1) };
            let join = Message::Join {
                boot: 1,
                role: crate::member::Role::Worker,
                resources: crate::fixture::RESOURCES,
                contact: crate::fixture::contact(9),
            };
            let foreign = zbelastic_types::ClusterId(CLUSTER.0 + 1);
            let leave = Message::Leave { holder: other };
            for (named, message) in [(foreign, join), (CLUSTER, leave)] {
                let message = Box::new(Envelope { cluster: named, message });
                let refused = cluster.input(node, Input::Message { from: n(9), message });
                assert!(refused.is_err());
            }
        }
    });
    let calm = run(0, |_| {});
    let kept = disturbed.trace.iter().filter(|line| !line.contains("refuses"));
    let expected = calm.trace.iter().filter(|line| !line.contains("refuses"));
    assert!(kept.eq(expected));
    let refused = disturbed.controllers[&n(CONTROLLER)].refusals()["other-cluster"];
    assert_eq!(refused, 240);
}
