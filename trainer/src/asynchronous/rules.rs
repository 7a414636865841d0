//! The numbers that asynchronous methods add to the optimizer's. What is done with them, element by
//! element, are operations of a backend ([`zbelastic_kernels::AsyncOptimizer::adam_ahead`] and those
//! behind it).

/// How long a change is remembered that the correction spreads over `updates` updates: D to the
/// power of one over them, with the D of PipeMare's section 3.2.
pub(super) fn delta_decay(updates: f64) -> f32 {
    const D: f64 = 0.135;
    libm::pow(D, 1.0 / updates) as f32
}

/// What PipeMare multiplies a stage's learning rate with at an update: 1 / tau^(1 - k/K), where tau
/// is the delay in updates as far as it is more than one, and K the updates of the annealing
/// (section 3.1).
pub(super) fn annealed_share(delay: f64, update: u32, anneal_updates: u64) -> f64 {
    let progress = f64::from(update) / anneal_updates.max(1) as f64;
    libm::pow(delay.max(1.0), -(1.0 - progress.min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::{annealed_share, delta_decay};

    #[test]
    fn changes_are_remembered_for_as_long_as_they_are_spread() {
        assert!((delta_decay(1.0) - 0.135).abs() < 1e-6);
        assert!((delta_decay(2.0) - 0.135f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn a_delayed_stage_begins_slowly() {
        assert_eq!(annealed_share(4.0, 0, 10), 0.25);
        assert_eq!(annealed_share(4.0, 5, 10), 0.5);
        assert_eq!(annealed_share(4.0, 10, 10), 1.0);
        assert_eq!(annealed_share(4.0, 11, 10), 1.0);
        assert_eq!(annealed_share(0.5, 0, 10), 1.0);
        assert_eq!(annealed_share(4.0, 0, 0), 0.25);
    }
}
