//! Values of keys, each with its origin.

use std::fmt;

use super::key::Key;
use super::value::ConfigValue;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The default of the key.
    Default,
    /// The preset of this name.
    Preset(&'static str),
    /// A file, in this line.
    File {
        /// The file, as it was named.
        file: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// A flag on the command line.
    Flag(&'static str),
}

impl SettingOrigin {
    /// Later layers cover earlier ones.
    pub fn layer(&self) -> u32 {
        match self {
            Self::Default => 0,
            Self::Preset(_) => 1,
            Self::File { .. } => 2,
            Self::Flag(_) => 3,
        }
    }

    /// Whether the value was set for this run, by a file or a flag.
    pub fn is_explicit(&self) -> bool {
        match self {
            Self::Default | Self::Preset(_) => false,
            Self::File { .. } | Self::Flag(_) => true,
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Preset(name) => write!(f, "preset {name}"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Value that the key is set to.
    pub value: ConfigValue,
    /// Origin of the value.
    pub origin: SettingOrigin,
}

/// A key and a value for it, not yet checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The key that is set.
    pub key: Key,
    /// The value and its origin.
    pub setting: Setting,
}

/// The effective value of a key, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveSetting {
    /// The key that is set.
    pub key: Key,
    /// The value that holds.
    pub value: ConfigValue,
    /// Origin of the value.
    pub origin: SettingOrigin,
}

impl fmt::Display for EffectiveSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.key.name(), self.value, self.origin)
    }
}
