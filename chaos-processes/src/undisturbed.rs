//! The same training without faults: the run that everything is compared with. It is run once for
//! each binary, configuration and number of steps, and kept.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::time::Duration;

use zbelastic_whole_file::{self as whole_file, TemporaryFolder};

use super::check::{NodeLog, UndisturbedRun, check};
use super::cluster_observation::ClusterObservation;
use super::contract::{TestedBinary, TestedConfiguration};
use super::durations::SortedDurations;
use super::events::{NodeEvent, NodeEventKind};
use super::local_cluster::{LocalCluster, LocalClusterError, LocalClusterSetup};
use super::process_network::NetworkKind;
use super::run_monitor::RunMonitor;

/// A training that nothing disturbs.
#[derive(Clone, Debug)]
pub struct UndisturbedTraining {
    /// The binary that trains.
    pub program: TestedBinary,
    /// The configuration of the training.
    pub config: TestedConfiguration,
    /// Number of steps that are trained.
    pub steps: u64,
    /// Number of workers of the cluster.
    pub workers: u32,
}

impl UndisturbedTraining {
    /// A hash that differs from that of other trainings.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn key(&self) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        let program = fs::metadata(&self.program.path)?;
        (&self.program.path, program.len(), program.modified()?).hash(&mut hasher);
        let TestedConfiguration { file, set } = &self.config;
        let text = file.as_deref().map_or(Ok(Vec::new()), fs::read)?;
        // The duration of a step depends on the workers, though the agreed facts do not.
        (file, text, set, self.steps, self.workers).hash(&mut hasher);
        Ok(hasher.finish())
    }

    /// The facts that a run without faults agrees on; from `cache` if it is there.
    ///
    /// # Errors
    /// If the cluster does not come to its end because it makes no progress for `limit`.
    pub fn undisturbed(
        &self,
        cache: &Path,
        limit: Duration,
        monitor: &mut RunMonitor<'_>,
    ) -> Result<UndisturbedRun, LocalClusterError> {
        let reading = |source| LocalClusterError::System {
            doing: "cannot read the configuration or the binary".to_owned(),
            source,
        };
        let path = cache.join(format!("undisturbed-{:016x}.json", self.key().map_err(reading)?));
        if let Some(known) = load(&path) {
            return Ok(known);
        }
        let undisturbed = self.train(limit, monitor)?;
        // Without a cache the next campaign trains again.
        let _ = save(&path, &undisturbed);
        Ok(undisturbed)
    }

    /// The facts that the same training agrees on in one process without a cluster; from `cache` if
    /// it is there.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub fn alone(&self, cache: &Path) -> Result<UndisturbedRun, LocalClusterError> {
        let reading = |source| LocalClusterError::System {
            doing: "cannot read the configuration or the binary".to_owned(),
            source,
        };
        let path = cache.join(format!("alone-{:016x}.json", self.key().map_err(reading)?));
        if let Some(known) = load(&path) {
            return Ok(known);
        }
        let folder = TemporaryFolder::temporary("alone").map_err(|source| {
            LocalClusterError::System { doing: "cannot make a folder".to_owned(), source }
        })?;
        let output = self.program.train(&self.config, self.steps, folder.path())?;
        let found = parse_output(&output);
        // Without a cache the next measurement trains again.
        let _ = save(&path, &found);
        Ok(found)
    }

    fn train(
        &self,
        limit: Duration,
        monitor: &mut RunMonitor<'_>,
    ) -> Result<UndisturbedRun, LocalClusterError> {
        let folder = TemporaryFolder::temporary("undisturbed").map_err(|source| {
            LocalClusterError::System { doing: "cannot make a folder".to_owned(), source }
        })?;
        let setup = LocalClusterSetup {
            program: self.program.clone(),
            folder: folder.path().to_owned(),
            controllers: 1,
            workers: self.workers,
            seed: 0,
            network: NetworkKind::Loopback,
            small_disk_mib: None,
        };
        let mut cluster = LocalCluster::start(&setup, limit)?;
        cluster.run(&self.config, self.steps)?;
        monitor.until_done(&mut cluster, limit)?;
        let logs: Vec<_> = cluster.members().iter().map(log_of).collect();
        let findings = check(&logs, self.steps, None);
        let violations = findings.violations.iter().map(ToString::to_string);
        let violations: Vec<_> = violations.collect();
        if !violations.is_empty() {
            return Err(LocalClusterError::Undisturbed { what: violations.join("; ") });
        }
        let seals = cluster.observation().seals().iter();
        let steps = seals.map(|(step, seal)| (*step, seal.facts.clone())).collect();
        let digest = findings.digests.first().cloned().or_else(|| cluster.final_digest());
        Ok(UndisturbedRun { steps, digest, step_ms: step_ms(cluster.observation()) })
    }
}

/// The run of a training, read from the lines that it printed.
fn parse_output(output: &str) -> UndisturbedRun {
    let mut found = UndisturbedRun::default();
    let mut times = SortedDurations::default();
    for line in output.lines() {
        let kind = NodeEvent::parse(line).kind;
        if let NodeEventKind::Seal(seal) = kind {
            found.steps.insert(seal.step, seal.facts);
            let line = serde_json::from_str::<serde_json::Value>(line);
            times.extend(line.ok().and_then(|line| line["ms"].as_f64()));
        } else if let NodeEventKind::Done { digest, .. } = kind {
            found.digest = digest;
        }
    }
    found.step_ms = times.quantiles().map_or(0.0, |quantiles| quantiles.p50_ms);
    found
}

/// The event log of a member.
#[must_use]
pub fn log_of(member: &super::local_cluster::ClusterMember) -> NodeLog<'_> {
    let name = member.spec().name.as_str();
    let events = member.events();
    NodeLog { name, events, disturbances: member.disturbances() }
}

/// Half of the steps lasted at most this.
fn step_ms(observation: &ClusterObservation) -> f64 {
    let seal_times_us: Vec<u64> = observation.seals().values().map(|seal| seal.at_us).collect();
    let gaps = seal_times_us.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3);
    gaps.collect::<SortedDurations>().quantiles().map_or(0.0, |quantiles| quantiles.p50_ms)
}

fn load(path: &Path) -> Option<UndisturbedRun> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn save(path: &Path, undisturbed: &UndisturbedRun) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Another campaign may read it meanwhile, so it is whole under its name.
    whole_file::write_to_cache(path, &serde_json::to_vec(undisturbed)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{UndisturbedTraining, load, parse_output, save};
    use crate::check::UndisturbedRun;
    use crate::contract::{TestedBinary, TestedConfiguration};
    use crate::events::SealFacts;

    #[test]
    fn what_was_run_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/a.json");
        let bits = [Some(u64::MAX), None, Some(0), Some(1)];
        let facts = SealFacts { verdict: "clip".to_owned(), bits };
        let steps = BTreeMap::from([(1, facts)]);
        let known = UndisturbedRun { steps, digest: Some("ab".to_owned()), step_ms: 0.1 };
        assert_eq!(load(&path), None);
        save(&path, &known).expect("written");
        assert_eq!(load(&path), Some(known));
    }

    #[test]
    fn what_a_training_printed_is_what_it_agreed_on() {
        let output = "{\"event\":\"step\",\"step\":1,\"verdict\":\"keep\",\"loss\":2.5,\"ms\":7.0}\n\
                    {\"event\":\"eval\",\"step\":1,\"held_out_loss\":2.0}\n\
                    {\"event\":\"done\",\"steps\":1,\"digest\":\"ab\"}\n";
        let found = parse_output(output);
        assert_eq!((found.digest.as_deref(), found.step_ms), (Some("ab"), 7.0));
        assert_eq!(found.steps[&1].loss(), Some(2.5));
    }

    #[test]
    fn another_training_has_another_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("a.toml");
        std::fs::write(&config, "a").expect("written");
        let program = TestedBinary::at(config.clone());
        let set = vec!["a.b=1".to_owned()];
        let configuration = TestedConfiguration { file: Some(config.clone()), set };
        let one = UndisturbedTraining { program, config: configuration, steps: 3, workers: 2 };
        let more = UndisturbedTraining { steps: 4, ..one.clone() };
        let other = UndisturbedTraining { config: one.config.with("a.b", 2), ..one.clone() };
        let key = one.key().expect("readable");
        assert_eq!(one.key().expect("readable"), key);
        assert_ne!(more.key().expect("readable"), key);
        assert_ne!(other.key().expect("readable"), key);
        std::fs::write(&config, "b").expect("written");
        assert_ne!(one.key().expect("readable"), key);
    }
}
