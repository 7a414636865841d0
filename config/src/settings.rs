//! The value of every key, and the layer that set it last.
//!
//! Layers lie on each other: default, preset, file, flags. A value that its key does not accept is
//! reported and left out; the value beneath it stays, and the key is remembered as refused, so that
//! problems between it and other keys are not reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::assignment::{Assignment, Setting, SettingOrigin};
use super::file::{FileAssignments, read_file, read_text};
use super::find_key::find_key;
use super::key::{Key, KeyDefault};
use super::presets::{PRESET_DEFAULT, find_preset};
use super::problem::ConfigProblem;
use super::value::ConfigValue;

/// Whether a run is yet to begin, or began with this configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigOrigin {
    /// It is yet to begin: the stores that it names are read and checked.
    New,
    /// It began: its stores and the folder of its model were checked, and may be elsewhere by now.
    /// The vocabulary and the shape of the model are among the keys.
    Recorded,
}

/// A flag that sets a key.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigFlag {
    /// `--set section.key=value`, the part behind `--set`.
    Set(String),
    /// A flag of its own, such as `--steps`.
    Own {
        /// Name of the flag, as it is typed.
        flag: &'static str,
        /// The key it sets.
        key: Key,
        /// The value that was typed.
        value: ConfigValue,
    },
}

/// Where a configuration comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigSources {
    /// Path of the configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Flags; later ones win.
    pub flags: Vec<ConfigFlag>,
}

/// The effective values of all keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigSettings {
    entries: BTreeMap<Key, Setting>,
    refused: BTreeSet<Key>,
}

impl ConfigSettings {
    /// Lays the layers of `sources` on each other. With the problems of single values; those
    /// between keys are another matter.
    ///
    /// # Errors
    /// If the file cannot be read as TOML: then that is the only problem.
    pub fn gather(sources: &ConfigSources) -> Result<(Self, Vec<ConfigProblem>), ConfigProblem> {
        let mut assignments = match &sources.file {
            Some(file) => read_file(file)?,
            None => Vec::new(),
        };
        assignments.extend(sources.flags.iter().map(read_flag));
        Ok(Self::from_assignments(assignments, sources.file.is_some()))
    }

    /// The same for a configuration that is here as text and is called `name`.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn gather_document(
        name: &str,
        document: &str,
    ) -> Result<(Self, Vec<ConfigProblem>), ConfigProblem> {
        read_text(name, document).map(|assignments| Self::from_assignments(assignments, true))
    }

    pub(super) fn from_assignments(
        assignments: FileAssignments,
        has_file: bool,
    ) -> (Self, Vec<ConfigProblem>) {
        let mut settings = Self::default();
        settings.lay_defaults();
        settings.lay_preset(assignments.iter().flatten(), has_file);
        let mut problems = Vec::new();
        for assignment in assignments {
            match assignment {
                Ok(assignment) => problems.extend(settings.lay(assignment)),
                Err(problem) => problems.push(problem),
            }
        }
        (settings, problems)
    }

    fn lay_defaults(&mut self) {
        for key in Key::ALL {
            match key.spec().fallback {
                KeyDefault::Literal(literal) => {
                    self.lay_known(*key, literal, SettingOrigin::Default)
                }
                KeyDefault::Described(_) => {}
            }
        }
    }

    /// The values of the preset that was named last; of the default one, if there is neither a
    /// preset nor a folder nor a file.
    fn lay_preset<'a>(
        &mut self,
        assignments: impl Iterator<Item = &'a Assignment>,
        has_file: bool,
    ) {
        let mut named = None;
        let mut has_folder = false;
        for assignment in assignments {
            if assignment.key == Key::Preset {
                named = Some(assignment.setting.value.clone());
            }
            has_folder |= assignment.key == Key::FromHf;
        }
        let default =
            (!has_file && !has_folder).then(|| ConfigValue::Text(PRESET_DEFAULT.to_owned()));
        let Some(ConfigValue::Text(name)) = named.or(default) else { return };
        let Some(preset) = find_preset(&name) else { return };
        for (key, literal) in preset.values {
            self.lay_known(*key, literal, SettingOrigin::Preset(preset.name));
        }
    }

    fn lay_known(&mut self, key: Key, literal: &str, origin: SettingOrigin) {
        let value = ConfigValue::parse(literal).expect("our tables are TOML");
        let problem = self.lay(Assignment { key, setting: Setting { value, origin } });
        assert!(problem.is_none(), "our tables hold legal values");
    }

    fn lay(&mut self, assignment: Assignment) -> Option<ConfigProblem> {
        let Assignment { key, setting: Setting { value, origin } } = assignment;
        match key.spec().kind.accept(&value) {
            Some(value) => {
                self.entries.insert(key, Setting { value, origin });
                None
            }
            None => {
                self.refused.insert(key);
                Some(ConfigProblem::Value { at: origin, key, found: value })
            }
        }
    }

    /// The effective value of a key, if it has one.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&Setting> {
        self.entries.get(&key)
    }

    /// Origin of the effective value of a key.
    #[must_use]
    pub fn origin(&self, key: Key) -> SettingOrigin {
        self.get(key).map_or(SettingOrigin::Default, |setting| setting.origin.clone())
    }

    /// Keys for which a value was refused.
    #[must_use]
    pub fn refused(&self) -> &BTreeSet<Key> {
        &self.refused
    }
}

/// The value that a flag's text stands for: TOML if the key accepts it as such, else plain text, so
/// that words need no quotes on a command line.
#[must_use]
pub fn flag_value(key: Key, text: &str) -> ConfigValue {
    let kind = key.spec().kind;
    let plain = ConfigValue::Text(text.to_owned());
    match ConfigValue::parse(text) {
        Ok(value) if kind.accept(&value).is_some() => value,
        Ok(value) if kind.accept(&plain).is_none() => value,
        Ok(_) | Err(_) => plain,
    }
}

pub(super) fn read_flag(flag: &ConfigFlag) -> Result<Assignment, ConfigProblem> {
    match flag {
        ConfigFlag::Own { flag, key, value } => {
            let setting = Setting { value: value.clone(), origin: SettingOrigin::Flag(flag) };
            Ok(Assignment { key: *key, setting })
        }
        ConfigFlag::Set(text) => {
            let Some((name, value)) = text.split_once('=') else {
                return Err(ConfigProblem::SetForm { text: text.clone() });
            };
            let key = find_key(name.trim(), SettingOrigin::Flag("--set"))?;
            let setting = Setting {
                value: flag_value(key, value.trim()),
                origin: SettingOrigin::Flag("--set"),
            };
            Ok(Assignment { key, setting })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigValue, Key, flag_value};

    #[test]
    fn flag_values_are_what_their_key_takes() {
        let check = |key, text, expected: ConfigValue| assert_eq!(flag_value(key, text), expected);
        let text = |text: &str| ConfigValue::Text(text.to_owned());
        check(Key::Schedule, "1f1b", text("1f1b"));
        check(Key::Schedule, "\"1f1b\"", text("1f1b"));
        check(Key::FromHf, "123", text("123"));
        check(Key::Text, "docs/*.md", text("docs/*.md"));
        check(Key::Text, "[\"a\"]", ConfigValue::List(vec![text("a")]));
        check(Key::Steps, "12", ConfigValue::Whole(12));
        check(Key::Steps, "many", text("many"));
    }
}
