//! Controllers on the stage: a core, and a disk that is quick and honest.

use chaos_tests::access::{contacts, credentials};
use chaos_tests::disk::MachineDisk;
use zbelastic_consensus::codec::Format;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::core::{Core, CoreSetup, CoreStart, Event, Input, Output};
use zbelastic_consensus::duty::DutyTiming;
use zbelastic_consensus::raft::{RaftSetup, RecoveredLog, encode_record};
use zbelastic_consensus::state::State;
use zbelastic_types::NodeId;

use super::network::{PlayMessage, PlayPacket};
use super::{CLUSTER, Play};

const TIMING: DutyTiming =
    DutyTiming { lost_after_ticks: 24, progress_ticks: 200, inventory_ticks: 40 };

/// The machine of a controller.
pub struct PlayController {
    pub core: Option<Core>,
    disk: MachineDisk,
    election_ticks: u32,
}

impl Play {
    pub(super) fn create_controllers(&mut self) {
        let voters: Vec<NodeId> = (1..=self.cast.controllers).map(NodeId).collect();
        let state = State::new(CLUSTER)
            .with_controllers(contacts(&voters))
            .with_credentials(credentials(self.cast.controllers, 0))
            .in_format(self.cast.format);
        for (election_ticks, node) in (10..).step_by(4).zip(voters.clone()) {
            let controller =
                PlayController { core: None, disk: MachineDisk::default(), election_ticks };
            self.controllers.insert(node, controller);
            let voters = voters.clone();
            let state = Box::new(state.clone());
            self.start_controller(node, CoreStart::Create { voters, state });
        }
    }

    fn start_controller(&mut self, node: NodeId, start: CoreStart) {
        self.boots += 1;
        let controller = self.controllers.get_mut(&node).expect("a controller");
        let raft = RaftSetup::new(node, self.boots, controller.election_ticks);
        let setup = CoreSetup {
            cluster: CLUSTER,
            contact: Contact::of_node(node),
            raft,
            timing: TIMING,
            newest_format: Format::NEWEST,
        };
        controller.core = Some(Core::new(setup, start).expect("its disk is whole"));
        self.drive_controller(node);
    }

    /// A node is connected to each other controller, and reads the newest format.
    pub fn connect(&mut self, node: NodeId) {
        let others: Vec<NodeId> =
            self.controllers.keys().copied().filter(|to| *to != node).collect();
        for to in others {
            self.controller_input(to, Input::Connected { node, reads: Format::NEWEST });
        }
    }

    /// The format of the log.
    pub fn format(&self) -> Format {
        self.state().expect("a controller is up").format()
    }

    pub(super) fn recover_controller(&mut self, node: NodeId) {
        let controller = self.controllers.get_mut(&node).expect("a controller");
        let recovered = RecoveredLog::from_records(controller.disk.records());
        controller.disk.renumber();
        let recovered = recovered.expect("its disk is whole");
        let log = Box::new(recovered);
        let controllers = Vec::new();
        self.start_controller(node, CoreStart::Recover { log, controllers, boot: 1 });
    }

    pub(super) fn controller_input(&mut self, node: NodeId, input: Input) {
        let Some(controller) = self.controllers.get_mut(&node) else { return };
        let Some(core) = &mut controller.core else { return };
        if let Err(refusal) = core.handle(input) {
            self.record.refused(refusal.name());
        }
        self.drive_controller(node);
    }

    fn drive_controller(&mut self, node: NodeId) {
        let PlayController { core, disk, .. } =
            self.controllers.get_mut(&node).expect("a controller");
        let core = core.as_mut().expect("it is up");
        while let Some(output) = core.poll_output() {
            match output {
                Output::Send { to, message } => {
                    let packet = PlayPacket::Control(message);
                    self.network.send(PlayMessage { from: node, to, packet });
                }
                Output::Persist { token, records } => {
                    let end = disk.append(records.iter().map(encode_record));
                    disk.sync(end);
                    core.on_persisted(token);
                }
                Output::Trim { before } => disk.trim(before.0),
                Output::Solve(request) => {
                    let solution = Box::new(self.planner.solve(&request));
                    let packet = PlayPacket::Plan(request.number, solution);
                    self.network.send(PlayMessage { from: node, to: node, packet });
                }
                Output::Event(Event::Applied { index, change, .. }) => {
                    self.record.applied(index, *change);
                }
                Output::Event(Event::Refused { index, entry, refusal, .. }) => {
                    self.record.ignored(index, entry, refusal);
                }
                Output::Event(
                    Event::NoPlan(_) | Event::Installed { .. } | Event::Leader { .. },
                ) => {}
                Output::Fatal(cause) => panic!("controller {node} must stop: {cause:?}"),
            }
        }
    }

    /// The controller that leads, as itself sees it; of two the one in the later term.
    pub fn leader(&self) -> NodeId {
        let cores = self.controllers.values().filter_map(|controller| controller.core.as_ref());
        let leading = cores.filter(|core| core.duties().is_some()).map(Core::status);
        leading.max_by_key(|status| status.term).expect("somebody leads").node
    }

    /// The controllers that do not lead.
    pub fn followers(&self) -> Vec<NodeId> {
        let leader = self.leader();
        self.controllers.keys().copied().filter(|node| *node != leader).collect()
    }

    /// The last index of a controller's log.
    pub fn last_index(&self, node: NodeId) -> u64 {
        self.controllers[&node].core.as_ref().expect("it is up").status().last_index
    }

    /// The newest state that any controller has applied.
    pub(super) fn state(&self) -> Option<&State> {
        let cores = self.controllers.values().filter_map(|controller| controller.core.as_ref());
        cores.map(Core::state).max_by_key(|state| state.applied())
    }
}
