//! Programs are changed one node after the other: the format is raised once all read a newer one.

use super::super::{ConnectionEnd, Event, FatalCause, Input};
use super::in_process::{CONTROLLER, InProcessCluster, n, persist, recover, setup};
use crate::codec::{DecodeError, Format};
use crate::core::Core;
use crate::state::{State, StateChange};

/// A cluster of the format before, led by a program that reads the newest.
fn old_cluster(controllers: u64, workers: u64) -> InProcessCluster {
    let mut cluster = InProcessCluster::in_format(Format::OLDEST, controllers, workers);
    cluster.until("all workers are in", |cluster| {
        cluster.leader().is_some() && cluster.state().live_workers().count() == workers as usize
    });
    cluster
}

/// Node `node` is connected to all other controllers, and reads up to this.
fn connect(cluster: &mut InProcessCluster, node: u64, reads: Format) {
    let controllers: Vec<_> = cluster.controllers.keys().copied().collect();
    for controller in controllers.into_iter().filter(|controller| *controller != n(node)) {
        cluster.input(controller, Input::Connected { node: n(node), reads }).expect("it is noted");
    }
}

fn formats(cluster: &InProcessCluster) -> Vec<u8> {
    cluster.controllers.values().map(|core| core.state().format().number()).collect()
}

#[test]
fn the_format_is_raised_once_when_the_last_member_reads_it() {
    let mut cluster = old_cluster(3, 2);
    let all: Vec<u64> = (CONTROLLER..CONTROLLER + 3).chain([1, 2]).collect();
    for (count, node) in all.iter().enumerate() {
        assert!(cluster.core().holding_format_back().count() > 0, "{count} are connected");
        let newest = if *node == 2 { Format::OLDEST } else { Format::NEWEST };
        connect(&mut cluster, *node, newest);
        cluster.rounds(20);
        assert_eq!(formats(&cluster), [9; 3], "{count}");
    }
    let holding: Vec<_> = cluster.core().holding_format_back().collect();
    assert_eq!(holding, [n(2)], "it has the program before");
    connect(&mut cluster, 2, Format::NEWEST);
    cluster.rounds(20);
    assert_eq!(formats(&cluster), [10; 3]);
    assert_eq!(cluster.core().holding_format_back().count(), 0);
    let is_raised = |(_, event): &&(_, Event)| {
        let Event::Applied { change, .. } = event else { return false };
        **change == StateChange::Format(Format::NEWEST)
    };
    assert_eq!(cluster.events.iter().filter(is_raised).count(), 3, "once on each");
}

/// A node that is not connected may have either program, whatever it had when it was.
#[test]
fn the_format_waits_for_who_is_away() {
    let mut cluster = old_cluster(3, 1);
    let away = CONTROLLER + 2;
    connect(&mut cluster, away, Format::NEWEST);
    for controller in [CONTROLLER, CONTROLLER + 1].map(n) {
        cluster
            .input(controller, Input::Closed { node: n(away), end: ConnectionEnd::Closed })
            .expect("it is noted");
    }
    for node in [CONTROLLER, CONTROLLER + 1, 1] {
        connect(&mut cluster, node, Format::NEWEST);
    }
    cluster.rounds(40);
    assert_eq!((formats(&cluster), cluster.leader()), (vec![9; 3], Some(n(CONTROLLER))));
    connect(&mut cluster, away, Format::NEWEST);
    cluster.rounds(40);
    assert_eq!(formats(&cluster), [10; 3]);
}

/// A snapshot that is taken before, and one that is taken after, are read by a program that reads
/// both formats.
#[test]
fn a_program_that_does_not_read_the_format_stops_and_says_so() {
    let node = n(CONTROLLER);
    let state = State::new(crate::fixture::CLUSTER)
        .with_controllers(crate::fixture::controllers(&[node]))
        .in_format(Format::OLDEST);
    let raise = crate::Entry::Format(Format::NEWEST).encode(Format::OLDEST);
    let disk =
        || super::in_process::disk(node, &[node], state.encode(), std::slice::from_ref(&raise));
    let mut new = Core::new(setup(node), recover(disk())).expect("the log is read");
    persist(&mut new);
    assert_eq!(new.state().format(), Format::NEWEST);
    let newest_format = Format::OLDEST;
    let setup = super::super::CoreSetup { newest_format, ..setup(node) };
    let mut old = Core::new(setup, recover(disk())).expect("the snapshot is read");
    let outputs = persist(&mut old);
    let unread = DecodeError::Version { newest: Format::OLDEST, found: Format::NEWEST.number() };
    let fatal = super::super::Output::Fatal(FatalCause::Version(unread));
    assert_eq!(outputs.last(), Some(&fatal), "and the log is intact");
}
