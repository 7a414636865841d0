//! The orchestrator of real processes, tried with processes that only pretend to train.
//!
//! This program is both: with a subcommand as its first argument it is a node or a command line of
//! a cluster ([`fake`]), else it is the tests. So no binary of the product is needed, and mistakes
//! can be planted that the orchestrator has to find.

#[path = "processes/fake.rs"]
mod fake;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zbelastic_chaos_processes::campaign::{self, ProcessCampaignSetup};
use zbelastic_chaos_processes::campaign_report::{CampaignVerdict, ProcessCampaignReport};
use zbelastic_chaos_processes::contract::{TestedBinary, TestedConfiguration};
use zbelastic_chaos_processes::faults::{ProcessFaultKind, ProcessFaultMix};
use zbelastic_chaos_processes::local_cluster::{LocalClusterError, LocalClusterSetup};
use zbelastic_chaos_processes::measure::{self, MeasureReport, MeasureRowKind, MeasureSetup};
use zbelastic_chaos_processes::process_network::NetworkKind;
use zbelastic_chaos_processes::run_monitor::RunMonitor;
use zbelastic_chaos_processes::undisturbed::UndisturbedTraining;
use zbelastic_whole_file::TemporaryFolder;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough to notice that nothing comes.
const IMPATIENCE: Duration = Duration::from_secs(2);
const SEED: u64 = 5;

/// A campaign against fake processes, some of which may have a bug.
struct FakeCampaign {
    folder: TemporaryFolder,
    bug: Option<&'static str>,
    mix: ProcessFaultMix,
    network: NetworkKind,
    standstill: Duration,
}

impl FakeCampaign {
    fn new(kinds: &[ProcessFaultKind], count: u64, power_cycles: u64) -> Self {
        let folder = TemporaryFolder::temporary("fake").expect("a folder");
        let kinds = kinds.to_vec();
        let longest_ms = LONGEST_MS;
        let together = 1;
        let mix = ProcessFaultMix { count, kinds, power_cycles, longest_ms, together };
        Self { folder, bug: None, mix, network: NetworkKind::Loopback, standstill: PATIENCE }
    }

    fn training(&self, bug: Option<&str>) -> UndisturbedTraining {
        let config = shared().join("config.toml");
        std::fs::write(&config, "").expect("written");
        let config = TestedConfiguration::of(config);
        let path = std::env::current_exe().expect("it has a path");
        let environment = bug.map(|bug| (fake::BUG.to_owned(), bug.to_owned()));
        let environment = environment.into_iter().collect();
        let program = TestedBinary { environment, ..TestedBinary::at(path) };
        let steps = ProcessCampaignSetup::steps(&self.mix, EVERY_STEPS, EVERY_STEPS);
        UndisturbedTraining { program, config, steps, workers: 3 }
    }

    fn campaign(&self, stop: &AtomicBool) -> (ProcessCampaignReport, String) {
        let mut output = Vec::new();
        let mut monitor = RunMonitor::new(&mut output, stop);
        let cache = shared().join("cache");
        let sound = AtomicBool::new(false);
        let undisturbed = self
            .training(None)
            .undisturbed(&cache, PATIENCE, &mut RunMonitor::new(&mut std::io::sink(), &sound))
            .expect("it is not disturbed");
        let training = self.training(self.bug);
        let cluster = LocalClusterSetup {
            program: training.program.clone(),
            folder: self.folder.path().join("group"),
            controllers: 3,
            workers: training.workers,
            seed: SEED,
            network: self.network,
            small_disk_mib: None,
        };
        let mix = self.mix.clone();
        let standstill = self.standstill;
        let every_steps = EVERY_STEPS;
        let print_every = Some(Duration::from_millis(100));
        let setup = ProcessCampaignSetup {
            training,
            cluster,
            mix,
            every_steps,
            standstill,
            print_every,
            page: None,
        };
        let report =
            campaign::run(&setup, &undisturbed, &mut monitor).expect("the output is written");
        (report, String::from_utf8(output).expect("text"))
    }

    fn report(&self) -> ProcessCampaignReport {
        self.campaign(&AtomicBool::new(false)).0
    }
}

/// Steps of some milliseconds each, so that a fault ends before the next one is due.
const EVERY_STEPS: u64 = 30;
const LONGEST_MS: u64 = 200;

fn a_sound_cluster_passes_under_every_fault() {
    let kinds = [ProcessFaultKind::USUAL.as_slice(), &[ProcessFaultKind::Replay]].concat();
    let mut scene = FakeCampaign::new(&kinds, 8, 2);
    scene.network = NetworkKind::Proxy;
    let (report, output) = scene.campaign(&AtomicBool::new(false));
    assert_eq!(report.verdict, CampaignVerdict::Passed, "{report}\n{output}");
    assert_eq!(report.strikes.len() as u64 + report.missed, 10);
    assert_eq!(report.findings.compared, report.steps);
    assert!(report.findings.digests.len() == 1 && report.digest_undisturbed.is_some());
    assert!(report.strikes.iter().all(|injection| injection.recovery.is_some()), "{report}");
    assert!(output.contains("✔ sealed step"), "{output}");
    let left: Vec<_> = children().collect();
    assert!(left.is_empty(), "{left:?} live on");
}

fn several_faults_at_once_strike_different_nodes_and_are_survived() {
    let kinds = [
        ProcessFaultKind::KillWorker,
        ProcessFaultKind::PauseWorker,
        ProcessFaultKind::KillFollower,
    ];
    let mut scene = FakeCampaign::new(&kinds, 9, 0);
    scene.mix.together = 3;
    let (report, output) = scene.campaign(&AtomicBool::new(false));
    assert_eq!(report.verdict, CampaignVerdict::Passed, "{report}\n{output}");
    assert!(report.strikes.iter().all(|injection| injection.recovery.is_some()), "{report}");
    let rounds = report.strikes.chunk_by(|one, two| two.step < one.step + EVERY_STEPS / 2);
    let mut most = 0;
    let mut count = 0;
    for round in rounds {
        let victims: BTreeSet<_> = round.iter().flat_map(|injection| &injection.victims).collect();
        assert_eq!(victims.len(), round.len(), "a node is hit twice: {round:?}");
        (most, count) = (most.max(round.len()), count + 1);
    }
    assert!(most == 3 && count <= 4, "{count} rounds of at most {most}");
}

/// What all tests have in common, so that the run without faults is run once for each length.
fn shared() -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("zbelastic-shared-{}", std::process::id()));
        std::fs::create_dir(&path).expect("made");
        path
    })
}

/// Processes that this one has started and that live.
fn children() -> impl Iterator<Item = String> {
    let path = format!("/proc/{0}/task/{0}/children", std::process::id());
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect::<Vec<_>>().into_iter()
}

fn unsafe_because(bug: &'static str, kinds: &[ProcessFaultKind], ids: &[&str]) {
    let mut scene = FakeCampaign::new(kinds, 3, 0);
    scene.bug = Some(bug);
    let report = scene.report();
    let found: Vec<_> = report.findings.violations.iter().map(|found| found.id).collect();
    assert!(matches!(report.verdict, CampaignVerdict::Unsafe(_)), "{bug}: {report}");
    assert!(ids.iter().all(|id| found.contains(id)), "{bug}: {found:?}\n{report}");
}

fn a_wrong_digest_is_found() {
    unsafe_because("digest", &[ProcessFaultKind::KillWorker], &["N1"]);
}

fn a_wrong_loss_is_found() {
    unsafe_because("loss", &[ProcessFaultKind::KillWorker], &["N1"]);
}

fn a_sealed_step_that_is_lost_is_found() {
    unsafe_because("lost", &[ProcessFaultKind::KillLeader], &["S1", "S6"]);
}

fn a_step_that_is_left_out_is_found() {
    unsafe_because("gap", &[ProcessFaultKind::KillLeader], &["S1"]);
}

fn a_run_that_stands_still_is_found() {
    let mut scene = FakeCampaign::new(&[ProcessFaultKind::KillWorker], 2, 0);
    (scene.bug, scene.standstill) = (Some("stuck"), IMPATIENCE);
    let report = scene.report();
    assert!(matches!(report.verdict, CampaignVerdict::Stuck(_)), "{report}");
}

fn a_process_that_ends_by_itself_is_found() {
    let mut scene = FakeCampaign::new(&[ProcessFaultKind::KillLeader], 1, 0);
    scene.bug = Some("exit");
    let report = scene.report();
    let CampaignVerdict::Crashed(why) = &report.verdict else { panic!("{report}") };
    assert!(why.contains("exit status: 3") && why.contains("I leave"), "{why}");
}

fn a_path_around_the_proxy_is_found() {
    let mut scene = FakeCampaign::new(&[ProcessFaultKind::Isolate], 1, 0);
    (scene.bug, scene.network) = (Some("bypass"), NetworkKind::Proxy);
    let report = scene.report();
    let CampaignVerdict::Harness(why) = &report.verdict else { panic!("{report}") };
    assert!(why.contains("past the proxy"), "{why}");
}

fn whoever_watches_may_end_it() {
    let stop = AtomicBool::new(false);
    stop.store(true, Ordering::Relaxed);
    let (report, _) = FakeCampaign::new(&[ProcessFaultKind::KillWorker], 2, 0).campaign(&stop);
    assert_eq!(report.verdict, CampaignVerdict::Interrupted);
}

/// What comes of rows that are measured on fake processes with this bug.
fn measured(bug: Option<&str>) -> MeasureReport {
    let scene = FakeCampaign::new(&[], 0, 0);
    let UndisturbedTraining { program, config, workers, .. } = scene.training(bug);
    let folder = scene.folder.path().join("measured");
    let cluster = LocalClusterSetup {
        program,
        folder,
        controllers: 1,
        workers,
        seed: SEED,
        network: NetworkKind::Loopback,
        small_disk_mib: None,
    };
    let rows = vec![MeasureRowKind::WorkerKilled, MeasureRowKind::Joins, MeasureRowKind::TwoKilled];
    let cache = scene.folder.path().join("cache");
    let setup = MeasureSetup {
        cluster,
        config,
        rows,
        times: 2,
        power_cycles: 0,
        undisturbed: 1,
        steps: 9,
        rounds: 1,
        cache,
    };
    let stop = AtomicBool::new(false);
    let mut sink = std::io::sink();
    measure::run(&setup, &mut RunMonitor::new(&mut sink, &stop)).expect("it goes on")
}

/// Whether marks about this are met.
fn are_met(measures: &MeasureReport, what: &str) -> Vec<bool> {
    let marks = measures.rows.iter().flat_map(|row| &row.marks);
    marks.filter(|mark| mark.what.contains(what)).map(|mark| mark.is_met).collect()
}

fn rows_are_held_against_their_goals() {
    let measures = measured(None);
    let counts: Vec<_> =
        measures.rows.iter().filter_map(|row| Some(row.next_seal?.count)).collect();
    assert_eq!(counts, [2, 1, 2], "{measures:?}");
    assert_eq!(are_met(&measures, "recovered from"), [true; 2]);
    assert_eq!(are_met(&measures, "sealed steps lost"), [true; 3]);
    assert_eq!(are_met(&measures, "ends with the digest"), [true]);
    assert!(measures.rows.iter().all(|row| row.what.contains("struck") || row.plans > 0));
}

fn a_row_whose_run_ends_with_another_digest_misses_its_goal() {
    assert_eq!(are_met(&measured(Some("digest")), "ends with the digest"), [false]);
}

fn a_program_that_cannot_start_is_reported() {
    let scene = FakeCampaign::new(&[], 0, 0);
    let mut training = scene.training(None);
    training.program.path = PathBuf::from("/no/such/program");
    let stop = AtomicBool::new(false);
    let mut sink = std::io::sink();
    let mut monitor = RunMonitor::new(&mut sink, &stop);
    let error = training.undisturbed(scene.folder.path(), PATIENCE, &mut monitor);
    assert!(matches!(error, Err(LocalClusterError::System { .. })), "{error:?}");
}

const TESTS: [(&str, fn()); 13] = [
    ("a_sound_cluster_passes_under_every_fault", a_sound_cluster_passes_under_every_fault),
    (
        "several_faults_at_once_strike_different_nodes_and_are_survived",
        several_faults_at_once_strike_different_nodes_and_are_survived,
    ),
    ("a_wrong_digest_is_found", a_wrong_digest_is_found),
    ("a_wrong_loss_is_found", a_wrong_loss_is_found),
    ("a_sealed_step_that_is_lost_is_found", a_sealed_step_that_is_lost_is_found),
    ("a_step_that_is_left_out_is_found", a_step_that_is_left_out_is_found),
    ("a_run_that_stands_still_is_found", a_run_that_stands_still_is_found),
    ("a_process_that_ends_by_itself_is_found", a_process_that_ends_by_itself_is_found),
    ("a_path_around_the_proxy_is_found", a_path_around_the_proxy_is_found),
    ("whoever_watches_may_end_it", whoever_watches_may_end_it),
    ("rows_are_held_against_their_goals", rows_are_held_against_their_goals),
    (
        "a_row_whose_run_ends_with_another_digest_misses_its_goal",
        a_row_whose_run_ends_with_another_digest_misses_its_goal,
    ),
    ("a_program_that_cannot_start_is_reported", a_program_that_cannot_start_is_reported),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if fake::is_subcommand(words.first()) {
        fake::run(&words);
        return;
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(*w));
    for (name, test) in TESTS.into_iter().filter(|(name, _)| is_wanted(name)) {
        // One that fails panics, which ends this program with an error.
        test();
        println!("test {name} ... ok");
    }
    // What cannot be removed is left to the cleanup of temporary files.
    let _ = std::fs::remove_dir_all(shared());
}
