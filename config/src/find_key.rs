//! Which key a name stands for, and which it may have meant.

use super::assignment::SettingOrigin;
use super::key::Key;
use super::nearest::nearest;
use super::problem::ConfigProblem;

/// The key of that name, section and all.
pub fn find_key(name: &str, at: SettingOrigin) -> Result<Key, ConfigProblem> {
    match name.split_once('.') {
        Some((section, short)) => find_in_section(section, short, at),
        None => {
            let nearest = nearest_key(name, Key::ALL.iter().copied());
            Err(ConfigProblem::NoSection { at, found: name.to_owned(), nearest })
        }
    }
}

/// The key that `section` has under `name`.
pub fn find_in_section(section: &str, name: &str, at: SettingOrigin) -> Result<Key, ConfigProblem> {
    if let Some(key) = Key::find(section, name) {
        return Ok(key);
    }
    let in_section = nearest_key(name, Key::of_section(section));
    let nearest = in_section.or_else(|| nearest_key(name, Key::ALL.iter().copied()));
    let section = section.to_owned();
    let found = name.to_owned();
    Err(ConfigProblem::UnknownKey { at, section, found, nearest })
}

/// The key with the nearest name within its section.
pub fn nearest_key(name: &str, keys: impl Iterator<Item = Key>) -> Option<Key> {
    let keys: Vec<Key> = keys.collect();
    let nearest = nearest(name, keys.iter().map(|key| key.short_name()))?;
    keys.into_iter().find(|key| key.short_name() == nearest)
}
