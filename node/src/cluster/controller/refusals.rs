//! Why a command is refused, as clients are answered.

use zbelastic_consensus::access::AccessRefusal;
use zbelastic_consensus::core::CoreRefusal;
use zbelastic_consensus::job::JobRefusal;
use zbelastic_consensus::member::MembershipStatus;
use zbelastic_consensus::run::RUNS_MAX;
use zbelastic_consensus::state::EntryRefusal;

use super::status::StatusView;
use crate::cluster::run_log::name_of;
use zbelastic_api::{ApiRefusal, ResourceKind, RunAbsence, WrongState};

impl StatusView<'_> {
    /// Why the core refuses a command, as it is answered.
    pub(super) fn refusal(&self, refusal: &CoreRefusal) -> ApiRefusal {
        if let CoreRefusal::Job(refusal) | CoreRefusal::Restore(EntryRefusal::Job(refusal)) =
            refusal
        {
            return self.job_refusal(refusal);
        }
        if let CoreRefusal::Access(refusal) = refusal {
            return self.access_refusal(refusal);
        }
        let node = match refusal {
            CoreRefusal::UnknownNode { node } => node,
            CoreRefusal::NotAWorker { node } => {
                let name = name_of(self.state(), *node);
                return ApiRefusal::WrongState(WrongState::ControllerStays { name });
            }
            CoreRefusal::Draining { node } => {
                let name = name_of(self.state(), *node);
                return ApiRefusal::WrongState(WrongState::Draining { name });
            }
            CoreRefusal::OtherCluster { .. }
            | CoreRefusal::Raft(_)
            | CoreRefusal::Propose(_)
            | CoreRefusal::Worker(_)
            | CoreRefusal::NotLeader { .. }
            | CoreRefusal::NotForControllers
            | CoreRefusal::WrongSender { .. }
            | CoreRefusal::Job(_)
            | CoreRefusal::Access(_)
            | CoreRefusal::Restore(_)
            | CoreRefusal::NotAVoter { .. }
            | CoreRefusal::PlanNotRequested { .. }
            | CoreRefusal::Stopped => return ApiRefusal::Malformed { what: refusal.to_string() },
        };
        let Some(member) = self.state().members().get(node) else {
            return ApiRefusal::NotFound { thing: ResourceKind::Node, name: node.to_string() };
        };
        let reason = match member.status {
            MembershipStatus::Lost(reason) => reason.to_string(),
            MembershipStatus::Present | MembershipStatus::Draining => String::new(),
        };
        ApiRefusal::WrongState(WrongState::NodeGone { name: member.contact.name.clone(), reason })
    }

    pub(super) fn entry_refusal(&self, refusal: &EntryRefusal) -> ApiRefusal {
        if let EntryRefusal::Job(refusal) = refusal {
            self.job_refusal(refusal)
        } else if let EntryRefusal::Access(refusal) = refusal {
            self.access_refusal(refusal)
        } else {
            ApiRefusal::Malformed { what: refusal.to_string() }
        }
    }

    fn access_refusal(&self, refusal: &AccessRefusal) -> ApiRefusal {
        match refusal {
            AccessRefusal::LastController { node } => {
                let name = name_of(self.state(), *node);
                ApiRefusal::WrongState(WrongState::LastController { name })
            }
            AccessRefusal::TokenRevoked { token } => {
                ApiRefusal::WrongState(WrongState::TokenRevoked { id: token.to_string() })
            }
            AccessRefusal::UnknownToken { token } => {
                ApiRefusal::NotFound { thing: ResourceKind::Token, name: token.to_string() }
            }
            AccessRefusal::NoCredential { node } => {
                ApiRefusal::NotFound { thing: ResourceKind::Node, name: node.to_string() }
            }
            AccessRefusal::Revoked { node } => ApiRefusal::WrongState(WrongState::NodeGone {
                name: name_of(self.state(), *node),
                reason: "it was removed".to_owned(),
            }),
            AccessRefusal::TooManyTokens | AccessRefusal::TooManyCredentials => {
                ApiRefusal::OutOfResource { what: refusal.to_string() }
            }
            AccessRefusal::TokenKnown { .. }
            | AccessRefusal::TokenExpired { .. }
            | AccessRefusal::TokenUsedUp { .. }
            | AccessRefusal::TokenRole { .. }
            | AccessRefusal::Uses { .. }
            | AccessRefusal::Note { .. }
            | AccessRefusal::Name(_)
            | AccessRefusal::Term { .. }
            | AccessRefusal::NotForgotten { .. }
            | AccessRefusal::CertificateSize { .. }
            | AccessRefusal::OtherAuthority { .. }
            | AccessRefusal::RotationPhase { .. } => {
                ApiRefusal::Malformed { what: refusal.to_string() }
            }
        }
    }

    pub(super) fn job_refusal(&self, refusal: &JobRefusal) -> ApiRefusal {
        let state = match refusal {
            JobRefusal::Missing => WrongState::NoRun { was: RunAbsence::Never },
            JobRefusal::Stopped => WrongState::NoRun { was: RunAbsence::Stopped },
            JobRefusal::Done => WrongState::Done,
            JobRefusal::NameTaken { name } => WrongState::NameTaken { name: name.clone() },
            JobRefusal::TooManyRuns => WrongState::TooManyRuns { max: RUNS_MAX as u64 },
            JobRefusal::NoRun { run } => {
                return ApiRefusal::NotFound { thing: ResourceKind::Run, name: run.to_string() };
            }
            JobRefusal::OtherModel { run } => {
                WrongState::OtherModel { name: self.catalog().name_of(*run) }
            }
            JobRefusal::NoStepsLeft { version, step_count } => {
                WrongState::NoStepsLeft { step: version.0, step_count: *step_count }
            }
            JobRefusal::Needed { name } => WrongState::RunNeeded { by: name.clone() },
            JobRefusal::NotHeld => WrongState::NotPaused,
            JobRefusal::Halted { reason } => WrongState::Halted { reason: reason.to_string() },
            JobRefusal::UnderWay | JobRefusal::Same => match self.job_status() {
                Some(job) => WrongState::OtherRun {
                    config: job.config,
                    step: job.step,
                    step_count: job.step_count,
                },
                None => WrongState::Starting,
            },
            JobRefusal::Size { .. }
            | JobRefusal::Document { .. }
            | JobRefusal::Workers { .. }
            | JobRefusal::Zero { .. }
            | JobRefusal::Stages { .. }
            | JobRefusal::Replays { .. }
            | JobRefusal::LayerBytes { .. }
            | JobRefusal::Copies { .. }
            | JobRefusal::Every { .. }
            | JobRefusal::Origin { .. }
            | JobRefusal::Name { .. } => {
                return ApiRefusal::Malformed { what: refusal.to_string() };
            }
        };
        ApiRefusal::WrongState(state)
    }
}
