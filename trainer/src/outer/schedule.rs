//! At which versions the weights of a layer are sent and mixed in.

use zbelastic_types::{LayerId, Step};

use super::config::OuterConfig;
use crate::model::{LayerKind, ModelConfig, model_layers};

/// One exchange of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OuterRound {
    /// The version whose weights are sent.
    pub sent: Step,
    /// The version that the outcome is mixed into.
    pub mixed: Step,
    /// The version at which the outer step before it was mixed in; 0 before the first.
    pub before: Step,
    /// Whether it ends the run: every island takes the outcome as it is, so that all end with the
    /// same weights.
    pub is_last: bool,
}

/// The rounds of every layer of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterSchedule {
    config: OuterConfig,
    step_count: u64,
    /// For each layer its fragment; none if nothing of it is trained.
    fragments: Vec<Option<u32>>,
}

impl OuterSchedule {
    /// The rounds of a run. Layers are dealt out in runs of neighbours, as evenly as can be; a head
    /// that is tied to the embedding goes with it, for they have one matrix.
    ///
    /// # Panics
    /// If the configuration is not legal for so many steps ([`OuterConfig::check`]).
    #[must_use]
    pub fn new(config: OuterConfig, model: &ModelConfig, step_count: u64) -> Self {
        assert_eq!(config.check(step_count), Ok(()), "the configuration was checked");
        let layers = model_layers(model);
        let count = layers.len() as u64;
        let fragments = u64::from(config.fragments);
        let is_tied = |kind: &LayerKind| model.tied && matches!(kind, LayerKind::Head);
        let fragment = |(index, layer): (usize, &crate::model::LayerSpec)| {
            let index = if is_tied(&layer.kind) { 0 } else { index as u64 };
            (layer.trained_floats() > 0).then_some((index * fragments / count) as u32)
        };
        let fragments = layers.iter().enumerate().map(fragment).collect();
        Self { config, step_count, fragments }
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &OuterConfig {
        &self.config
    }

    /// The schedule of another island of the same run.
    #[must_use]
    pub fn of_island(&self, island: u32) -> Self {
        Self { config: OuterConfig { island, ..self.config.clone() }, ..self.clone() }
    }

    /// Whether a layer is exchanged at all.
    #[must_use]
    pub fn exchanges(&self, layer: LayerId) -> bool {
        self.fragment(layer).is_some()
    }

    /// Whether the weights of this version of a layer are published: those of a round that are sent, and
    /// those before the first step, from which all islands must begin alike.
    #[must_use]
    pub fn publishes(&self, layer: LayerId, version: Step) -> bool {
        self.exchanges(layer) && version.0 == 0 || self.sent_at(layer, version).is_some()
    }

    /// The round that sends the weights of this version.
    #[must_use]
    pub fn sent_at(&self, layer: LayerId, version: Step) -> Option<OuterRound> {
        let offset = self.offset(layer)?;
        let OuterConfig { every, overlap, .. } = self.config;
        let sent = version.0;
        let last = self.last_sent();
        let round = |mixed, before, is_last| OuterRound {
            sent: version,
            mixed: Step(mixed),
            before: Step(before),
            is_last,
        };
        if sent == last {
            return Some(round(self.step_count, self.mixed_by(offset, last), true));
        }
        let is_regular = sent > 0 && sent % every == offset && sent + overlap <= last;
        is_regular.then(|| round(sent + overlap, self.mixed_by(offset, sent), false))
    }

    /// The round whose outcome is mixed into this version.
    #[must_use]
    pub fn mixed_at(&self, layer: LayerId, version: Step) -> Option<OuterRound> {
        let sent = version.0.checked_sub(self.config.overlap)?;
        self.sent_at(layer, Step(sent)).filter(|round| round.mixed == version)
    }

    /// The round of a layer that was sent at this version or before, and is not mixed in yet.
    #[must_use]
    pub fn under_way(&self, layer: LayerId, version: Step) -> Option<OuterRound> {
        let first = version.0.saturating_sub(self.config.overlap - 1);
        let mut rounds = (first..=version.0).filter_map(|sent| self.sent_at(layer, Step(sent)));
        rounds.find(|round| round.mixed > version)
    }

    /// Whether an outcome is mixed into this version of any layer: then no step runs ahead of it.
    #[must_use]
    pub fn mixes_any(&self, version: Step) -> bool {
        (0..self.fragments.len() as u32)
            .any(|layer| self.mixed_at(LayerId(layer), version).is_some())
    }

    fn fragment(&self, layer: LayerId) -> Option<u32> {
        self.fragments.get(layer.index()).copied().flatten()
    }

    /// Steps within `every` at which the fragment of a layer is sent.
    fn offset(&self, layer: LayerId) -> Option<u64> {
        let fragment = u64::from(self.fragment(layer)?);
        Some(fragment * self.config.every / u64::from(self.config.fragments))
    }

    /// The version whose weights the last round sends.
    const fn last_sent(&self) -> u64 {
        self.step_count - self.config.overlap
    }

    /// The last version at or before `sent` into which a round of this offset was mixed; 0 if none was.
    fn mixed_by(&self, offset: u64, sent: u64) -> u64 {
        let OuterConfig { every, overlap, .. } = self.config;
        let Some(latest) = sent.checked_sub(overlap).and_then(|latest| latest.checked_sub(offset))
        else {
            return 0;
        };
        match offset + latest / every * every {
            0 => 0,
            before => before + overlap,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::{Family, FrozenTensors, LlamaFeatures};

    /// Two blocks, so six layers.
    pub fn model(tied: bool) -> ModelConfig {
        ModelConfig {
            family: Family::Gpt2,
            blocks: 2,
            width: 4,
            heads: 1,
            kv_heads: 1,
            head_width: 4,
            mlp_width: 8,
            features: LlamaFeatures::NONE,
            vocabulary: 8,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
            tied,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    fn schedule(every: u64, fragments: u32, overlap: u64, steps: u64) -> OuterSchedule {
        let config = OuterConfig {
            islands: 2,
            island: 0,
            every,
            fragments,
            overlap,
            local_share: 0.5,
            lr: 0.7,
            momentum: 0.9,
        };
        OuterSchedule::new(config, &model(false), steps)
    }

    fn rounds(schedule: &OuterSchedule, layer: u32) -> Vec<(u64, u64, u64)> {
        let steps = 0..=schedule.step_count;
        let found = steps.filter_map(|sent| schedule.sent_at(LayerId(layer), Step(sent)));
        found.map(|round| (round.before.0, round.sent.0, round.mixed.0)).collect()
    }

    #[test]
    fn fragments_are_sent_in_turn_and_the_last_round_ends_the_run() {
        let schedule = schedule(10, 3, 2, 31);
        assert_eq!(schedule.fragments, [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(rounds(&schedule, 0), [(0, 10, 12), (12, 20, 22), (22, 29, 31)]);
        assert_eq!(rounds(&schedule, 2), [(0, 3, 5), (5, 13, 15), (15, 23, 25), (25, 29, 31)]);
        assert_eq!(rounds(&schedule, 5), [(0, 6, 8), (8, 16, 18), (18, 26, 28), (28, 29, 31)]);
    }

    /// Each begins when the one before it is over, whatever the settings.
    #[test]
    fn rounds_of_a_layer_follow_on_each_other() {
        for every in 2..9 {
            for fragments in 1..=every.min(4) as u32 {
                for overlap in 1..every {
                    for steps in overlap + 1..30 {
                        let schedule = schedule(every, fragments, overlap, steps);
                        for layer in 0..6 {
                            check(&schedule, layer);
                        }
                    }
                }
            }
        }
    }

    fn check(schedule: &OuterSchedule, layer: u32) {
        let rounds = rounds(schedule, layer);
        let mut before = 0;
        for (found, sent, mixed) in &rounds {
            assert_eq!(*found, before, "{schedule:?}");
            assert!(before <= *sent && sent < mixed, "{schedule:?}");
            let round = schedule.mixed_at(LayerId(layer), Step(*mixed)).expect("it is mixed in");
            assert_eq!(round.sent, Step(*sent));
            for version in *sent..*mixed {
                let under_way = schedule.under_way(LayerId(layer), Step(version));
                assert_eq!(under_way, Some(round), "{schedule:?} at {version}");
            }
            assert_ne!(schedule.under_way(LayerId(layer), Step(*mixed)), Some(round));
            before = *mixed;
        }
        assert_eq!(before, schedule.step_count, "islands end alike");
    }

    #[test]
    fn a_tied_head_goes_with_its_embedding() {
        let config = schedule(10, 3, 2, 31).config;
        let schedule = OuterSchedule::new(config, &model(true), 31);
        assert_eq!(schedule.fragments, [0, 0, 1, 1, 2, 0].map(Some));
    }
}
