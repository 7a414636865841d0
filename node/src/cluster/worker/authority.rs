//! A worker trusts the authorities that the cluster agreed to trust, and reports its progress with
//! that.

use super::WorkerNode;
use crate::cluster::authority::{LOOK_TICKS, is_certified, report, updated_credentials};
use crate::cluster::wire::NodeMessage;

impl WorkerNode {
    /// Follows a change of authority: what was agreed travels with where members are reached.
    pub(super) fn follow_rotation(&mut self) {
        self.authority_ticks += 1;
        if self.authority_ticks < LOOK_TICKS {
            return;
        }
        self.authority_ticks = 0;
        let contacts = self.session.contacts().clone();
        let Some(rotation) = &contacts.rotation else { return };
        if let Some(followed) = updated_credentials(rotation, &self.setup.credentials) {
            let followed = followed.map_err(|error| error.to_string());
            match followed.and_then(|credentials| self.use_credentials(credentials)) {
                Ok(()) => self
                    .journal
                    .log("the authorities that this node trusts have changed".to_owned()),
                Err(why) => self.journal.warn(format!("another authority is not trusted: {why}")),
            }
        }
        self.wants_certificate =
            rotation.is_issuing() && !is_certified(rotation, &self.setup.credentials);
        if self.wants_certificate {
            self.renewal.check_soon();
        }
        if rotation.is_under_way() {
            let report = report(rotation, &self.setup.credentials, false);
            self.send_to_controllers(&NodeMessage::Authority(report));
        }
    }
}
