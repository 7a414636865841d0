//! A configuration as changes of another: with what a run goes on from another's checkpoint.

use std::collections::BTreeMap;

use zbelastic_wording::{CommandFailure, FailureDetail};

use super::effective::with_folder_keys;
use super::file::read_text;
use super::settings::{ConfigOrigin, ConfigSettings, ConfigSources, read_flag};
use super::{Key, LoadedConfig, check, failure};

/// Keys that make of flags a configuration of its own.
const OWN_MODEL: [Key; 2] = [Key::Preset, Key::FromHf];
/// Keys of what is trained on, which is not described by a run's configuration alone.
const DATA: [Key; 3] = [Key::Text, Key::Tokens, Key::Tokenizer];

/// What flags change in the configuration of another run, as TOML. Nothing if they are a configuration of
/// their own: with a file, a preset or a model's folder.
///
/// # Errors
/// If a flag names no key, or what is trained on.
pub fn changes(sources: &ConfigSources) -> Result<Option<String>, CommandFailure> {
    if sources.file.is_some() {
        return Ok(None);
    }
    let read: Result<Vec<_>, _> = sources.flags.iter().map(read_flag).collect();
    let assignments = read.map_err(|problem| failure(vec![problem]))?;
    if assignments.iter().any(|assignment| OWN_MODEL.contains(&assignment.key)) {
        return Ok(None);
    }
    if let Some(data) = assignments.iter().find(|assignment| DATA.contains(&assignment.key)) {
        let what = format!("{} without a configuration", data.key.name());
        let detail = FailureDetail::new(what)
            .at(data.setting.origin.to_string())
            .why("without one, a run that goes on from another reads the same data")
            .hint("give the configuration as a file, or with `--set model.preset=NAME`");
        return Err(CommandFailure::usage("the configuration", vec![detail]));
    }
    // The last of several wins.
    let values: BTreeMap<Key, _> =
        assignments.into_iter().map(|it| (it.key, it.setting.value)).collect();
    let line = |(key, value): (Key, super::ConfigValue)| format!("{} = {value}\n", key.name());
    Ok(Some(values.into_iter().map(line).collect()))
}

/// Reads the TOML of a run's job with `changes` laid over it, and checks the two together; places in
/// errors call it `name`.
///
/// # Errors
/// As [`load_recorded`](super::load_recorded).
pub fn load_changed(
    name: &str,
    recorded: &str,
    changes: &str,
) -> Result<LoadedConfig, CommandFailure> {
    let gathered = read_text(name, &with_folder_keys(recorded)).and_then(|mut assignments| {
        assignments.extend(read_text("the changes", changes)?);
        Ok(ConfigSettings::from_assignments(assignments, true))
    });
    let gathered = gathered.map_err(|problem| vec![problem]);
    gathered.and_then(|gathered| check(gathered, ConfigOrigin::Recorded)).map_err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigFlag, load_document};

    fn flags(texts: &[&str]) -> ConfigSources {
        let flags = texts.iter().map(|text| ConfigFlag::Set((*text).to_owned())).collect();
        ConfigSources { file: None, flags }
    }

    #[test]
    fn flags_alone_are_changes_and_the_last_of_several_wins() {
        let found = |texts: &[&str]| changes(&flags(texts)).expect("legal");
        assert_eq!(found(&[]), Some(String::new()));
        let twice = ["train.steps=9", "schedule.kind=zb-h1", "train.steps=12"];
        let expected = "train.steps = 12\nschedule.kind = \"zb-h1\"\n";
        let mut lines: Vec<_> = expected.lines().collect();
        let text = found(&twice).expect("changes");
        let mut found_lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        found_lines.sort_unstable();
        assert_eq!(found_lines, lines);
        assert_eq!(found(&["train.steps=9", "model.preset=tiny"]), None, "a configuration");
        let file = ConfigSources { file: Some("run.toml".into()), ..flags(&["train.steps=9"]) };
        assert_eq!(changes(&file).expect("legal"), None, "a configuration");
    }

    #[test]
    fn other_data_takes_a_configuration() {
        for text in ["data.text=a.txt", "data.tokens=store", "data.tokenizer=bytes"] {
            let failure = changes(&flags(&["train.steps=9", text])).expect_err("other data");
            let detail = &failure.details[0];
            let (key, _) = text.split_once('=').expect("a value");
            assert!(detail.what.starts_with(key), "{detail:?}");
        }
        assert!(changes(&flags(&["train.stepz=9"])).is_err(), "no key");
    }

    #[test]
    fn changes_are_laid_over_what_was_recorded() {
        let text = "[model]\npreset = \"tiny\"\n[train]\nsteps = 7\nseed = 3\n";
        let recorded = load_document("test", text).expect("legal").config;
        let changed = load_changed("one", &recorded.effective(), "train.steps = 12\n");
        let changed = changed.expect("legal").config;
        assert_eq!((changed.steps, changed.seed), (12, 3));
        assert_eq!(changed.model, recorded.model);
        let same = load_changed("one", &recorded.effective(), "").expect("legal").config;
        assert_eq!(same, recorded);
        let failure = load_changed("one", &recorded.effective(), "train.steps = 0\n");
        let failure = failure.expect_err("no steps");
        assert!(format!("{failure:?}").contains("the changes"), "{failure:?}");
    }
}
