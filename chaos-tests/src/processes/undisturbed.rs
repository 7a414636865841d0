//! The same training without faults: what everything is compared with. It is run once for each
//! binary, configuration and number of steps, and kept.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::check::{NodeLog, Undisturbed, check};
use super::contract::{Configuration, Program};
use super::events::{Event, EventKind};
use super::folder::Folder;
use super::group::{Group, GroupError, GroupSetup};
use super::picture::Picture;
use super::times::Times;
use super::watch::Watch;
use super::wires::Wires;

/// A training that nothing disturbs.
#[derive(Clone, Debug)]
pub struct Training {
    /// The binary that trains.
    pub program: Program,
    /// The configuration of the training.
    pub config: Configuration,
    /// Number of steps.
    pub steps: u64,
    /// Number of workers.
    pub workers: u32,
}

impl Training {
    /// A hash that differs from that of other trainings.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn key(&self) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        let program = fs::metadata(&self.program.path)?;
        (&self.program.path, program.len(), program.modified()?).hash(&mut hasher);
        let Configuration { file, set } = &self.config;
        let text = file.as_deref().map_or(Ok(Vec::new()), fs::read)?;
        // How long a step takes depends on the workers, whatever it agrees on.
        (file, text, set, self.steps, self.workers).hash(&mut hasher);
        Ok(hasher.finish())
    }

    /// What a run without faults agrees on; from `cache` if it is there.
    ///
    /// # Errors
    /// If the cluster does not come to its end because it makes no progress for `limit`.
    pub fn undisturbed(
        &self,
        cache: &Path,
        limit: Duration,
        watch: &mut Watch<'_>,
    ) -> Result<Undisturbed, GroupError> {
        let reading = |source| GroupError::System {
            doing: "cannot read the configuration or the binary".to_owned(),
            source,
        };
        let path = cache.join(format!("undisturbed-{:016x}.json", self.key().map_err(reading)?));
        if let Some(known) = load(&path) {
            return Ok(known);
        }
        let undisturbed = self.train(limit, watch)?;
        // Without a cache the next campaign trains again.
        let _ = save(&path, &undisturbed);
        Ok(undisturbed)
    }

    /// What the same training agrees on in one process without a cluster; from `cache` if it is there.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub fn alone(&self, cache: &Path) -> Result<Undisturbed, GroupError> {
        let reading = |source| GroupError::System {
            doing: "cannot read the configuration or the binary".to_owned(),
            source,
        };
        let path = cache.join(format!("alone-{:016x}.json", self.key().map_err(reading)?));
        if let Some(known) = load(&path) {
            return Ok(known);
        }
        let folder = Folder::temporary("alone").map_err(|source| GroupError::System {
            doing: "cannot make a folder".to_owned(),
            source,
        })?;
        let told = self.program.train(&self.config, self.steps, folder.path())?;
        let found = retold(&told);
        // Without a cache the next measurement trains again.
        let _ = save(&path, &found);
        Ok(found)
    }

    fn train(&self, limit: Duration, watch: &mut Watch<'_>) -> Result<Undisturbed, GroupError> {
        let folder = Folder::temporary("undisturbed").map_err(|source| GroupError::System {
            doing: "cannot make a folder".to_owned(),
            source,
        })?;
        let setup = GroupSetup {
            program: self.program.clone(),
            folder: folder.path().to_owned(),
            controllers: 1,
            workers: self.workers,
            seed: 0,
            wires: Wires::Loopback,
            small_disk_mib: None,
        };
        let mut group = Group::start(&setup, limit)?;
        group.run(&self.config, self.steps)?;
        watch.until_done(&mut group, limit)?;
        let logs: Vec<_> = group.members().iter().map(log_of).collect();
        let findings = check(&logs, self.steps, None);
        let violations = findings.violations.iter().map(ToString::to_string);
        let violations: Vec<_> = violations.collect();
        if !violations.is_empty() {
            return Err(GroupError::Undisturbed { what: violations.join("; ") });
        }
        let seals = group.picture().seals().iter();
        let steps = seals.map(|(step, seal)| (*step, seal.facts.clone())).collect();
        let digest = findings.digests.first().cloned().or_else(|| group.final_digest());
        Ok(Undisturbed { steps, digest, step_ms: step_ms(group.picture()) })
    }
}

/// What a training printed, read from its lines.
fn retold(told: &str) -> Undisturbed {
    let mut found = Undisturbed::default();
    let mut times = Times::default();
    for line in told.lines() {
        let kind = Event::parse(line).kind;
        if let EventKind::Seal(seal) = kind {
            found.steps.insert(seal.step, seal.facts);
            let line = serde_json::from_str::<serde_json::Value>(line);
            times.extend(line.ok().and_then(|line| line["ms"].as_f64()));
        } else if let EventKind::Done { digest, .. } = kind {
            found.digest = digest;
        }
    }
    found.step_ms = times.quantiles().map_or(0.0, |quantiles| quantiles.p50_ms);
    found
}

/// The event log of a member.
#[must_use]
pub fn log_of(member: &super::group::Member) -> NodeLog<'_> {
    let (name, events) = (member.spec().name.as_str(), member.events());
    NodeLog { name, events, disturbances: member.disturbances() }
}

/// Half of the steps took at most this.
fn step_ms(picture: &Picture) -> f64 {
    let moments: Vec<u64> = picture.seals().values().map(|seal| seal.at_us).collect();
    let gaps = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3);
    gaps.collect::<Times>().quantiles().map_or(0.0, |quantiles| quantiles.p50_ms)
}

fn load(path: &Path) -> Option<Undisturbed> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn save(path: &Path, undisturbed: &Undisturbed) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Another campaign may read it meanwhile, so it is whole under its name.
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&beside, serde_json::to_vec(undisturbed)?)?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Training, load, retold, save};
    use crate::processes::check::Undisturbed;
    use crate::processes::contract::{Configuration, Program};
    use crate::processes::events::Facts;

    #[test]
    fn what_was_run_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/a.json");
        let bits = [Some(u64::MAX), None, Some(0), Some(1)];
        let facts = Facts { verdict: "clip".to_owned(), bits };
        let steps = BTreeMap::from([(1, facts)]);
        let known = Undisturbed { steps, digest: Some("ab".to_owned()), step_ms: 0.1 };
        assert_eq!(load(&path), None);
        save(&path, &known).expect("written");
        assert_eq!(load(&path), Some(known));
    }

    #[test]
    fn what_a_training_printed_is_what_it_agreed_on() {
        let told = "{\"event\":\"step\",\"step\":1,\"verdict\":\"keep\",\"loss\":2.5,\"ms\":7.0}\n\
                    {\"event\":\"eval\",\"step\":1,\"held_out_loss\":2.0}\n\
                    {\"event\":\"done\",\"steps\":1,\"digest\":\"ab\"}\n";
        let found = retold(told);
        assert_eq!((found.digest.as_deref(), found.step_ms), (Some("ab"), 7.0));
        assert_eq!(found.steps[&1].loss(), Some(2.5));
    }

    #[test]
    fn another_training_has_another_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("a.toml");
        std::fs::write(&config, "a").expect("written");
        let program = Program::at(config.clone());
        let set = vec!["a.b=1".to_owned()];
        let configuration = Configuration { file: Some(config.clone()), set };
        let one = Training { program, config: configuration, steps: 3, workers: 2 };
        let more = Training { steps: 4, ..one.clone() };
        let other = Training { config: one.config.with("a.b", 2), ..one.clone() };
        let key = one.key().expect("readable");
        assert_eq!(one.key().expect("readable"), key);
        assert_ne!(more.key().expect("readable"), key);
        assert_ne!(other.key().expect("readable"), key);
        std::fs::write(&config, "b").expect("written");
        assert_ne!(one.key().expect("readable"), key);
    }
}
