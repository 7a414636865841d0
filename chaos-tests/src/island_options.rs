//! How weights are exchanged in lives that are one of two islands.

use zbelastic_trainer::outer::OuterConfig;

use crate::random::Draws;

/// The share of lives that are one of two islands, and steps from one exchange of weights to the next.
const ISLANDS_SHARE: f64 = 0.25;
const ISLANDS_EVERY: (u64, u64) = (3, 9);

/// How weights are exchanged in a life, if there is another island.
pub(crate) fn draw_islands(draws: &mut Draws) -> Option<OuterConfig> {
    if !draws.chance(ISLANDS_SHARE) {
        return None;
    }
    let every = draws.between(ISLANDS_EVERY.0, ISLANDS_EVERY.1);
    Some(OuterConfig {
        islands: 2,
        island: 0,
        every,
        fragments: draws.between(1, every.min(3)) as u32,
        overlap: draws.between(1, every - 1),
        local_share: *draws.pick(&[0.0, 0.5]),
        lr: 0.7,
        momentum: 0.9,
    })
}
