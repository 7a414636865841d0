//! The effects at a controller of entries that were agreed on.

use std::time::Instant;

use zbelastic_consensus::access::AccessOutcome;
use zbelastic_consensus::core::Event as CoreEvent;
use zbelastic_consensus::state::StateChange;
use zbelastic_wire::document::JobDocument;

use super::ControllerNode;
use super::data::ensure_data;
use super::pieces::{collect_unused, complete_checkpoint};
use crate::cluster::requests;
use zbelastic_api::{EventKind, token_role};
use zbelastic_policy::formats::version_of;
use zbelastic_timing::unix_ms;

impl ControllerNode {
    pub(super) fn handle_core_event(&mut self, event: CoreEvent) {
        match event {
            CoreEvent::Applied { index, term, change } => {
                self.handle_change((index, term), &change)
            }
            CoreEvent::Refused { index, term, entry, refusal } => {
                let text = format!("entry {index} ({entry}) changed nothing: {refusal}");
                self.ports.journal.log(text);
                self.joins.refuse((index, term), &refusal, self.ports.state().access());
                self.answer_command((index, term), Err(refusal));
            }
            CoreEvent::NoPlan(none) => self.ports.journal.warn(none.to_string()),
            CoreEvent::Installed { index } => {
                // Whether the snapshot holds their entries is not known.
                for reply in self.commands.take_behind(index) {
                    requests::reply(reply, &self.view().no_quorum());
                }
                self.backfill.request();
                self.follow_job();
                self.ban_revoked();
            }
            CoreEvent::Leader { leader, term } => {
                self.ports.journal.record(EventKind::Leader { node: leader, term });
            }
        }
    }

    fn handle_change(&mut self, (index, term): (u64, u64), change: &StateChange) {
        if let StateChange::Job { .. } = change {
            self.follow_job();
        }
        let now = (Instant::now(), unix_ms());
        for kind in self.run_log.note_change(change, self.ports.core.state(), now) {
            let kind = self.ports.runs().with_digest(kind);
            let kind = kind.with_drain_reason(|node| self.links.connected.take_drain_reason(node));
            self.ports.journal.record_entry(index, kind);
        }
        self.planning.note_change(change, &self.ports.core, &self.run_log);
        match change {
            StateChange::Checkpoint { version, .. } => {
                complete_checkpoint(*version, &mut self.ports);
                self.backfill.request();
            }
            StateChange::Removed { run } => {
                self.ports.journal.log(format!("run {run} is removed"));
                collect_unused(&mut self.ports);
            }
            StateChange::Job { .. } => {
                collect_unused(&mut self.ports);
                self.backfill.request();
            }
            StateChange::Access(outcome) => self.note_access(index, outcome),
            StateChange::Members(_) | StateChange::Format(_) => self.ban_revoked(),
            StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Resumed(_)
            | StateChange::Sealed { .. }
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Rewound { .. } => {}
        }
        self.answer_command((index, term), Ok(()));
    }

    /// The tokens or credentials that the cluster agreed on changed.
    fn note_access(&mut self, index: u64, outcome: &AccessOutcome) {
        let journal = &mut self.ports.journal;
        match outcome {
            AccessOutcome::LetIn { key, node, .. } => {
                let directory = self.connections.directory();
                let ports = (&mut self.ports, directory);
                self.joins.admit((*key, *node), ports, &self.certificates);
            }
            AccessOutcome::TokenMade { token } => {
                let tokens = self.ports.core.state().access().tokens();
                if let Some(role) = tokens.get(token).map(|token| token_role(token.terms.role)) {
                    let id = token.to_string();
                    journal.record_entry(index, EventKind::TokenCreated { id, role });
                }
            }
            AccessOutcome::TokenRevoked { token } => {
                journal.record_entry(index, EventKind::TokenRevoked { id: token.to_string() });
            }
            AccessOutcome::Revoked { node } | AccessOutcome::Forgotten { node } => {
                self.ports.tasks.transport().ban(*node);
            }
            AccessOutcome::Authority { phase, revoked } => {
                self.rotation.note_phase(*phase, (index, revoked), journal);
            }
            AccessOutcome::Renewed { .. } => {}
        }
    }

    /// Bans revoked nodes, and programs that do not read the log's format, whenever this one learned
    /// of it: such a program would end with the first entry in it.
    pub(super) fn ban_revoked(&self) {
        let transport = self.ports.tasks.transport();
        let state = self.ports.state();
        transport.retire_versions_before(version_of(state.format()));
        state.access().revoked().for_each(|node| transport.ban(node));
    }

    pub(super) fn follow_job(&mut self) {
        let Some(spec) = self.ports.state().job().map(|job| job.spec.clone()) else { return };
        match JobDocument::of_job(&spec) {
            Ok(job) => {
                ensure_data(&job.job, &mut self.ports);
                self.use_store(&job.job);
                self.planning.set_job(job.name, &mut self.ports.core);
                self.run_log.set_job(job);
            }
            Err(error) => self.ports.journal.warn(error.to_string()),
        }
    }

    /// Keeps checkpoints in the folder that the job names.
    fn use_store(&mut self, job: &JobDocument) {
        let dir = job.config.checkpoint.folder.as_deref();
        let record = self.connections.node_record();
        let folder = self.store_locations.of_job(dir, record.cluster, record.node);
        let checkpoint_thread = self.ports.tasks.checkpoint_thread();
        match folder.map(|folder| checkpoint_thread.use_store(folder)) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                let text = "checkpoint.dir: too much waits for the disk".to_owned();
                self.ports.journal.warn(text);
            }
            Err(error) => self.ports.journal.warn(format!("checkpoint.dir: {error}")),
        }
    }
}
