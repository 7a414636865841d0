//! Whether going ahead of the verdict pays.
//!
//! A rollback costs about what the barrier costs that it replaces, so going ahead loses only if
//! nearly every step is rolled back, and then only if verdicts are quick. The thresholds lie apart,
//! so that a rate between them changes nothing.

use zbelastic_schedule::Window;

use super::watch::DutyWatch;
use crate::history::ROLLBACK_WINDOW;
use crate::job::WindowPolicy;
use crate::plan::{PlanReason, PlanRecord};
use crate::state::State;

/// Rollbacks in so many seals from which on waiting is better: 29 of 32, the break-even rate of
/// 0.9 with eight stages and 24 microbatches.
pub const ROLLBACKS_TO_WAIT: u32 = 29;
/// Rollbacks up to which going ahead is tried again.
pub const ROLLBACKS_TO_GO: u32 = 24;
/// Ticks of waiting for a verdict up to which waiting for it costs little.
pub const WAIT_TICKS_SHORT: u32 = 1;
/// Ticks of waiting for a verdict from which on going ahead pays at every rate. Far from
/// [`WAIT_TICKS_SHORT`]: a wait is measured in whole ticks, and one more or less says nothing.
pub const WAIT_TICKS_LONG: u32 = 5;
/// Steps that a plan runs before its window is switched: the seals that are looked at must be its
/// own.
pub const STEPS_BEFORE_SWITCH: u64 = ROLLBACK_WINDOW as u64;

/// The window to switch to, if any, from the last seals and the wait for verdicts.
#[must_use]
pub fn switched_window(
    window: Window,
    rollbacks: u32,
    seals: u32,
    wait_ticks: u32,
) -> Option<Window> {
    if (seals as usize) < ROLLBACK_WINDOW {
        return None;
    }
    match window {
        Window::One if rollbacks >= ROLLBACKS_TO_WAIT && wait_ticks <= WAIT_TICKS_SHORT => {
            Some(Window::Zero)
        }
        Window::Zero if rollbacks <= ROLLBACKS_TO_GO || wait_ticks >= WAIT_TICKS_LONG => {
            Some(Window::One)
        }
        Window::One | Window::Zero => None,
    }
}

/// The window that steps are to run with from here on, if it is another one.
pub(super) fn window_need(
    state: &State,
    watch: &DutyWatch,
    plan: &PlanRecord,
) -> Option<PlanReason> {
    let spec = state.running_spec()?;
    let steps = state.open_turn().step.0.saturating_sub(plan.from_step.0);
    if spec.window != WindowPolicy::Auto || steps < STEPS_BEFORE_SWITCH {
        return None;
    }
    let ((rollbacks, seals), wait_ticks) =
        (state.history().rollbacks(), watch.heartbeats.wait_ticks());
    let window = switched_window(plan.window()?, rollbacks, seals, wait_ticks)?;
    Some(PlanReason::WindowSwitched { window, rollbacks, seals, wait_ticks })
}

#[cfg(test)]
mod tests {
    use super::switched_window;
    use zbelastic_schedule::Window::{One, Zero};

    #[test]
    fn the_window_follows_rate_and_wait_with_room_between() {
        let check = |window, rollbacks, wait, expected| {
            assert_eq!(switched_window(window, rollbacks, 32, wait), expected);
        };
        check(One, 28, 0, None);
        check(One, 29, 0, Some(Zero));
        check(One, 29, 1, Some(Zero));
        check(One, 29, 2, None);
        check(Zero, 25, 0, None);
        check(Zero, 24, 0, Some(One));
        check(Zero, 32, 4, None);
        check(Zero, 32, 5, Some(One));
        assert_eq!(switched_window(One, 31, 31, 0), None, "too few seals to tell");
    }
}
