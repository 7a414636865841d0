//! Presets: models with a name for their sizes.

use super::key::Key;
use super::words::PresetName;

/// A model with its usual batch.
#[derive(Debug)]
pub struct Preset {
    /// Name of the preset, as `model.preset` accepts it.
    pub name: &'static str,
    /// The model and its purpose, in one sentence.
    pub doc: &'static str,
    /// The keys it sets, each to a TOML value.
    pub values: &'static [(Key, &'static str)],
}

/// The preset where the configuration names no file, folder or preset.
pub const PRESET_DEFAULT: &str = PresetName::Quickstart.text();

/// Every preset, in the order in which they are listed.
pub const PRESETS: [Preset; 6] = [
    Preset {
        name: PresetName::Quickstart.text(),
        doc: "A llama of eight layers that learns to spell in minutes on two cores.",
        values: &[
            (Key::Family, "\"llama\""),
            (Key::Layers, "8"),
            (Key::Width, "128"),
            (Key::Heads, "4"),
            (Key::KvHeads, "2"),
            (Key::MlpWidth, "352"),
            (Key::Vocab, "256"),
            (Key::Steps, "360"),
            (Key::GlobalBatch, "16"),
            (Key::Microbatch, "2"),
            (Key::SeqLen, "128"),
            (Key::Lr, "3e-3"),
            (Key::Warmup, "20"),
        ],
    },
    Preset {
        name: PresetName::Tiny.text(),
        doc: "A GPT-2 of four layers, to try things on.",
        values: &[
            (Key::Family, "\"gpt2\""),
            (Key::Layers, "4"),
            (Key::Width, "64"),
            (Key::Heads, "4"),
            (Key::GlobalBatch, "16"),
            (Key::Microbatch, "2"),
            (Key::SeqLen, "64"),
        ],
    },
    Preset {
        name: PresetName::BenchA.text(),
        doc: "The small GPT-2 that `bench train` measures.",
        values: &[
            (Key::Family, "\"gpt2\""),
            (Key::Layers, "4"),
            (Key::Width, "256"),
            (Key::Heads, "4"),
            (Key::Vocab, "256"),
            (Key::GlobalBatch, "8"),
            (Key::Microbatch, "2"),
            (Key::SeqLen, "128"),
        ],
    },
    Preset {
        name: PresetName::BenchB.text(),
        doc: "The middle GPT-2 that `bench train` measures.",
        values: &[
            (Key::Family, "\"gpt2\""),
            (Key::Layers, "6"),
            (Key::Width, "384"),
            (Key::Heads, "6"),
            (Key::Vocab, "4096"),
            (Key::GlobalBatch, "8"),
            (Key::Microbatch, "2"),
            (Key::SeqLen, "256"),
        ],
    },
    Preset {
        name: PresetName::BenchC.text(),
        doc: "The large GPT-2 that `bench train` measures.",
        values: &[
            (Key::Family, "\"gpt2\""),
            (Key::Layers, "12"),
            (Key::Width, "768"),
            (Key::Heads, "12"),
            (Key::Vocab, "50304"),
            (Key::GlobalBatch, "2"),
            (Key::Microbatch, "1"),
            (Key::SeqLen, "256"),
        ],
    },
    Preset {
        name: PresetName::Gpt2124m.text(),
        doc: "The smallest GPT-2 that was published, with a head of its own.",
        values: &[
            (Key::Family, "\"gpt2\""),
            (Key::Layers, "12"),
            (Key::Width, "768"),
            (Key::Heads, "12"),
            (Key::Vocab, "50257"),
            (Key::GlobalBatch, "64"),
            (Key::Microbatch, "8"),
            (Key::SeqLen, "1024"),
            (Key::Lr, "6e-4"),
        ],
    },
];

/// The preset of that name.
pub fn find_preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

#[cfg(test)]
mod tests {
    use super::{PRESETS, PresetName, find_preset};
    use crate::value::ConfigValue;
    use crate::words::words;

    #[test]
    fn presets_set_legal_values_once() {
        for preset in &PRESETS {
            for (index, (key, literal)) in preset.values.iter().enumerate() {
                let value = ConfigValue::parse(literal).expect("a preset is TOML");
                assert!(key.spec().kind.accept(&value).is_some(), "{}: {literal}", key.name());
                assert!(preset.values[..index].iter().all(|(before, _)| before != key));
            }
        }
        let names = words::<PresetName>();
        let found = names.iter().filter_map(|name| find_preset(name));
        assert!(found.map(|preset| preset.name).eq(names.iter().copied()));
        assert_eq!(PRESETS.len(), names.len());
    }
}
