//! The class of devices that a job computes on: agreed on with its first plan, kept until it ends.
//! Bits differ between classes, so workers of another class have no part in it.

use super::State;
use crate::class::DeviceClass;
use crate::member::{Holder, Member, MembershipStatus};
use crate::plan::{PlanRecord, PlanRefusal};

impl State {
    /// The class that the job computes on, once it has had a plan.
    #[must_use]
    pub fn class(&self) -> Option<DeviceClass> {
        self.class
    }

    /// The class that a plan made now is for: the job's, or that of the first worker with devices
    /// of the job's kind, one that stays if there is one.
    #[must_use]
    pub fn class_for_plan(&self) -> Option<DeviceClass> {
        let kind = self.job()?.spec.device;
        let first = |stays: bool| {
            let is_it = |(_, member): &(Holder, &Member)| {
                let is_staying = member.status == MembershipStatus::Present;
                member.resources.class.kind() == kind && (is_staying || !stays)
            };
            self.live_workers().find(is_it).map(|(_, member)| member.resources.class)
        };
        self.class.or_else(|| first(true)).or_else(|| first(false))
    }

    /// Workers that a plan of the job may seat.
    pub fn fitting_workers(&self) -> impl Iterator<Item = (Holder, &Member)> {
        let class = self.class_for_plan();
        self.live_workers().filter(move |(_, member)| Some(member.resources.class) == class)
    }

    /// The class that all stages of a plan compute on.
    ///
    /// # Errors
    /// With the first stage's holder that is not of the job's class: of its kind, if it has none
    /// yet.
    pub(super) fn class_of_plan(&self, record: &PlanRecord) -> Result<DeviceClass, PlanRefusal> {
        let refusal = |holder: &Holder| PlanRefusal::Class { holder: *holder };
        let class_of = |holder: &Holder| {
            let member = self.members.get(&holder.node);
            member.map(|member| member.resources.class).ok_or_else(|| refusal(holder))
        };
        let first = &record.stages[0];
        let class = self.class.map_or_else(|| class_of(first), Ok)?;
        if self.job().is_none_or(|job| job.spec.device != class.kind()) {
            return Err(refusal(first));
        }
        for holder in &record.stages {
            if class_of(holder)? != class {
                return Err(refusal(holder));
            }
        }
        Ok(class)
    }
}
