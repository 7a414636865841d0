//! Snapshots that this program does not read: a controller that would have to believe them stops.

use super::super::{Core, CoreStart, FatalCause, Input, Output, StartError};
use super::in_process::{CONTROLLER, disk, n, persist, recover, setup};
use crate::codec::{self, DecodeError, Format};
use crate::fixture::{CLUSTER, FixtureLog, spec};
use crate::message::{Envelope, Message};
use crate::raft::{RaftNode, RaftOutput, VoterChange};
use crate::state::State;
use zbelastic_types::ClusterId;

fn start_from(data: Vec<u8>) -> Result<Core, StartError> {
    let node = n(CONTROLLER);
    Core::new(setup(node), recover(disk(node, &[node], data, &[])))
}

#[test]
fn a_snapshot_on_disk_that_does_not_decode_is_no_start() {
    let good = codec::encode(&FixtureLog::running(spec(), &[1]).state);
    assert!(start_from(good.clone()).is_ok());
    let check = |data: Vec<u8>, expected: DecodeError| match start_from(data) {
        Err(StartError::Snapshot(found)) => assert_eq!(found, expected),
        Err(StartError::Raft(_) | StartError::OtherCluster { .. }) | Ok(_) => {
            panic!("expected {expected:?}")
        }
    };
    let found = Format::NEWEST.number() + 1;
    check([&[found], &good[1..]].concat(), DecodeError::Version { newest: Format::NEWEST, found });
    check(good[..good.len() - 1].to_vec(), DecodeError::Form);
    check([good, vec![0]].concat(), DecodeError::Trailing { count: 1 });
    check(Vec::new(), DecodeError::Empty);
}

const OTHER: ClusterId = ClusterId(CLUSTER.0 + 1);

/// A disk that was mistaken for another, and a start that was given another cluster's state.
#[test]
fn a_state_of_another_cluster_is_no_start() {
    let check = |started: Result<Core, StartError>| match started {
        Err(StartError::OtherCluster { expected: CLUSTER, found: OTHER }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a state of {OTHER} was believed"),
    };
    let state = State::new(OTHER).with_controllers(crate::fixture::controllers(&[n(CONTROLLER)]));
    check(start_from(state.encode()));
    let (voters, state) = (vec![n(CONTROLLER)], Box::new(state));
    check(Core::new(setup(n(CONTROLLER)), CoreStart::Create { voters, state }));
}

#[test]
fn a_leaders_snapshot_of_another_cluster_is_fatal_and_not_believed() {
    let (core, outputs) = install(codec::encode(&State::new(OTHER)));
    let cause = FatalCause::OtherCluster { expected: CLUSTER, found: OTHER };
    assert_eq!(outputs.last(), Some(&Output::Fatal(cause)));
    assert_eq!(core.state(), &State::new(CLUSTER), "it was not believed");
}

/// A leader of another program: it votes and sends, and its state is nothing we know.
struct ForeignLeader(RaftNode, Vec<u8>);

impl ForeignLeader {
    fn outputs(&mut self) -> Vec<Envelope> {
        let mut sent = Vec::new();
        while let Some(output) = self.0.poll() {
            match output {
                RaftOutput::Send { message, .. } => {
                    sent.push(Envelope { cluster: CLUSTER, message: Message::Raft(message) });
                }
                RaftOutput::Persist { token, .. } => self.0.on_persisted(token),
                RaftOutput::RequestSnapshot => {
                    let applied = self.0.status().applied;
                    self.0.compact(applied, self.1.clone()).expect("there is something new");
                }
                RaftOutput::Trim { .. }
                | RaftOutput::Committed(_)
                | RaftOutput::Installed { .. }
                | RaftOutput::LeaderChanged { .. }
                | RaftOutput::Fatal(_) => {}
            }
        }
        sent
    }
}

/// A controller that waits is given `data` as the state. What it does then.
fn install(data: Vec<u8>) -> (Core, Vec<Output>) {
    let (first, second) = (n(CONTROLLER), n(CONTROLLER + 1));
    let raft = RaftNode::create(setup(first).raft, &[first], data.clone()).expect("it starts");
    let mut foreign = ForeignLeader(raft, data);
    let start = CoreStart::Wait { controllers: vec![first], boot: 1 };
    let mut core = Core::new(setup(second), start).expect("it starts");
    let mut outputs = Vec::new();
    for _ in 0..100 {
        foreign.0.tick();
        // Requested until it is done; what is done is refused.
        let _ = foreign.0.change_voters(VoterChange::AddLearner(second));
        for envelope in foreign.outputs() {
            // What comes while the snapshot is written is refused, and sent again.
            let _ = core.handle(Input::Message { from: first, message: Box::new(envelope) });
            for output in persist(&mut core) {
                if let Output::Send { message, .. } = &output
                    && let Message::Raft(message) = &message.message
                {
                    foreign.0.handle(second, message.clone()).expect("an answer is accepted");
                }
                outputs.push(output);
            }
        }
    }
    (core, outputs)
}

#[test]
fn a_leaders_snapshot_that_does_not_decode_is_fatal_and_not_believed() {
    let good = codec::encode(&FixtureLog::running(spec(), &[1]).state);
    let (core, outputs) = install(good.clone());
    assert!(core.state().plan().is_some(), "a snapshot that decodes is believed");
    assert!(!outputs.iter().any(|output| matches!(output, Output::Fatal(_))));
    let found = Format::NEWEST.number() + 1;
    let newer = [&[found], &good[1..]].concat();
    for (bad, error) in [
        (newer, DecodeError::Version { newest: Format::NEWEST, found }),
        (good[..good.len() - 1].to_vec(), DecodeError::Form),
    ] {
        let (core, outputs) = install(bad);
        assert_eq!(outputs.last(), Some(&Output::Fatal(FatalCause::Version(error))));
        assert_eq!(core.state(), &State::new(CLUSTER), "it was not believed");
    }
}
