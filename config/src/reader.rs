//! Reads settings as the types that their kinds promise.

use super::key::Key;
use super::settings::ConfigSettings;
use super::value::ConfigValue;
use super::words::ConfigWord;

/// Reads settings. Panics on a value that its kind does not accept, because none is laid.
#[derive(Clone, Copy)]
pub struct SettingsReader<'a> {
    /// The settings to read from.
    pub settings: &'a ConfigSettings,
}

impl SettingsReader<'_> {
    pub fn value(&self, key: Key) -> Option<&ConfigValue> {
        self.settings.get(key).map(|setting| &setting.value)
    }

    pub fn known(&self, key: Key) -> &ConfigValue {
        self.value(key).unwrap_or_else(|| panic!("{} has a default", key.name()))
    }

    pub fn count(&self, key: Key) -> u64 {
        let ConfigValue::Whole(number) = self.known(key) else { unlike(key) };
        u64::try_from(*number).expect("the kind limits it")
    }

    pub fn size(&self, key: Key) -> u32 {
        u32::try_from(self.count(key)).expect("the kind limits it")
    }

    pub fn number(&self, key: Key) -> f64 {
        number(key, self.known(key))
    }

    pub fn pair(&self, key: Key) -> [f64; 2] {
        let ConfigValue::List(items) = self.known(key) else { unlike(key) };
        let [first, second] = items.as_slice() else { unlike(key) };
        [number(key, first), number(key, second)]
    }

    pub fn text(&self, key: Key) -> Option<&str> {
        self.value(key).map(|value| text(key, value))
    }

    pub fn texts(&self, key: Key) -> Vec<String> {
        let ConfigValue::List(items) = self.known(key) else { unlike(key) };
        items.iter().map(|item| text(key, item).to_owned()).collect()
    }

    pub fn flag(&self, key: Key) -> bool {
        let ConfigValue::Flag(flag) = self.known(key) else { unlike(key) };
        *flag
    }

    pub fn choice<T: ConfigWord>(&self, key: Key) -> T {
        T::of_word(text(key, self.known(key))).expect("the kind knows its words")
    }
}

fn number(key: Key, value: &ConfigValue) -> f64 {
    let ConfigValue::Number(number) = value else { unlike(key) };
    *number
}

fn text(key: Key, value: &ConfigValue) -> &str {
    let ConfigValue::Text(text) = value else { unlike(key) };
    text
}

fn unlike(key: Key) -> ! {
    panic!("{} holds a value that is not of its kind", key.name())
}
