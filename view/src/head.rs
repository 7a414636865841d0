//! The figures at the head of a page that a status does not have.

use serde::Serialize;
use zbelastic_api::{MemberRole, MemberState, StatusReport};

use crate::StepHistory;

/// What a run costs and could reach, as far as it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunCosts {
    /// Price of a worker for an hour, in any currency.
    pub price_per_hour: Option<f64>,
    /// Floating-point operations of a token, forward and backward, in place of those of the status.
    pub flop_per_token: Option<f64>,
    /// Floating-point operations a second of all workers at their peak, in place of those that they
    /// reported: workers that share cores reach less together.
    pub peak_flop_per_s: Option<f64>,
}

/// Figures that follow from the status, the history and the costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeadFigures {
    /// The share of the time since the first kept step that training needed.
    pub goodput: Option<f64>,
    /// Model FLOPs utilization (PaLM, appendix B): the model's operations over the peak.
    pub mfu: Option<f64>,
    /// Workers that are present or draining.
    pub workers: u64,
    /// Price of an hour with these workers.
    pub price_per_hour: Option<f64>,
    /// Price of the steps that are left, with these workers at this speed.
    pub price_left: Option<f64>,
}

impl HeadFigures {
    /// The figures of a moment.
    #[must_use]
    pub fn of(status: &StatusReport, history: &StepHistory, costs: &RunCosts) -> Self {
        let is_there = |state: &MemberState| match state {
            MemberState::Present | MemberState::Draining => true,
            MemberState::Lost { .. } => false,
        };
        let members = status.members.iter().filter(|member| member.role == MemberRole::Worker);
        let workers = members.filter(|member| is_there(&member.standing)).count() as u64;
        let job = status.job.as_ref();
        let speed = job.and_then(|job| job.tokens_per_s);
        let flop = costs.flop_per_token.or_else(|| job?.flop_per_token);
        let peak = costs.peak_flop_per_s.or_else(|| reported_peak(status));
        let mfu = || Some(speed? * flop? / peak?).filter(|mfu| mfu.is_finite());
        let price_per_hour = costs.price_per_hour.map(|price| price * workers as f64);
        let price_left = || Some(price_per_hour? * job?.eta_s? / 3600.0);
        Self {
            goodput: history.goodput(),
            mfu: mfu(),
            workers,
            price_per_hour,
            price_left: price_left(),
        }
    }
}

/// The peak of the workers that have a stage, if all of them reported theirs.
fn reported_peak(status: &StatusReport) -> Option<f64> {
    let members = status.members.iter().filter(|member| member.stage.is_some());
    let peaks = members.map(|member| member.peak_flop_per_s.map(|peak| peak as f64));
    let peak: f64 = peaks.sum::<Option<f64>>()?;
    (peak > 0.0).then_some(peak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample;

    #[test]
    fn costs_follow_from_workers_and_time_left() {
        let costs = RunCosts {
            price_per_hour: Some(2.0),
            flop_per_token: Some(1e6),
            peak_flop_per_s: Some(1e12),
        };
        let mut status = sample::status();
        let job = status.job.as_mut().expect("a run");
        job.eta_s = Some(1800.0);
        job.tokens_per_s = Some(250_000.0);
        let head = HeadFigures::of(&status, &StepHistory::default(), &costs);
        // Three workers of four are there.
        assert_eq!(head.workers, 3);
        assert_eq!(head.price_per_hour, Some(6.0));
        assert_eq!(head.price_left, Some(3.0));
        assert_eq!(head.mfu, Some(0.25));
        let head = HeadFigures::of(&status, &StepHistory::default(), &RunCosts::default());
        assert_eq!((head.price_left, head.mfu, head.goodput), (None, None, None));
    }

    /// A page that was given nothing reads it from the status; where one worker with a stage reported
    /// no peak, as on a device, there is none.
    #[test]
    fn mfu_is_known_where_the_job_and_all_workers_with_a_stage_are() {
        let mut status = sample::status();
        let job = status.job.as_mut().expect("a run");
        job.tokens_per_s = Some(250_000.0);
        job.flop_per_token = Some(1e6);
        let mfu = |status: &StatusReport| {
            HeadFigures::of(status, &StepHistory::default(), &RunCosts::default()).mfu
        };
        status.members.iter_mut().for_each(|member| member.stage = None);
        assert_eq!(mfu(&status), None, "nobody trains");
        let [first, second, ..] = &mut status.members[..] else { panic!("some members") };
        first.stage = Some(0);
        second.stage = Some(1);
        first.peak_flop_per_s = Some(600_000_000_000);
        assert_eq!(mfu(&status), None);
        status.members[1].peak_flop_per_s = Some(400_000_000_000);
        assert_eq!(mfu(&status), Some(0.25));
        status.job.as_mut().expect("a run").flop_per_token = None;
        assert_eq!(mfu(&status), None, "a controller of an earlier version");
    }
}
