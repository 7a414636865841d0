//! The sample of lives that every change has to pass. `zbelastic chaos sim` lives any number more.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use chaos_tests::campaign::Campaign;
use chaos_tests::case::{LifeCase, LifeTicket};
use chaos_tests::life::LifeResult;
use chaos_tests::markers::Marker;
use chaos_tests::options::ComputeModelKind;
use chaos_tests::report::{CampaignEnding, CampaignReport, LIVES_FOR_MARKERS};
use zbelastic_schedule::ScheduleKind;
use zbelastic_trainer::plan::{LaneCount, ReplicaCount};

/// Lives with hashes: as many as have to show every marker.
const DIGEST_LIVES: u64 = LIVES_FOR_MARKERS;
/// Lives with real kernels, which take longer.
const FLOAT_LIVES: u64 = 50;
/// Lives with slices, with hashes and with real kernels.
const SLICED_DIGEST_LIVES: u64 = 100;
const SLICED_FLOAT_LIVES: u64 = 6;
/// Lives with two replicas, with hashes and with real kernels.
const REPLICAS_DIGEST_LIVES: u64 = 100;
const REPLICAS_FLOAT_LIVES: u64 = 6;
/// Of these, lives whose run may be halted before its last step: where the two workers that are left contradict
/// each other, and no third one tells which of them is wrong. The world verifies that reason.
const TWICE_HALTED_MAX: usize = 1;
/// Lives with several pipelines, with hashes and with real kernels.
const PIPELINES_DIGEST_LIVES: u64 = 100;
const PIPELINES_FLOAT_LIVES: u64 = 6;
/// Lives that are lived twice.
const TWICE_LIVES: u64 = 20;

const REGRESSIONS: &str = include_str!("../regressions.txt");

/// Lives that must all pass.
fn pass(is_twice: bool, tickets: impl Iterator<Item = LifeTicket> + Send) -> CampaignReport {
    let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let report = Campaign { jobs, is_twice, live: &LifeResult::of }.run(tickets, |_| ());
    assert_eq!(report.ending(), CampaignEnding::Passed, "\n{report}{}", report.summary());
    report
}

fn tickets(count: u64, model: ComputeModelKind) -> impl Iterator<Item = LifeTicket> + Send {
    (1..=count).map(move |seed| LifeTicket { seed, model })
}

/// A life that failed once.
struct Regression {
    ticket: LifeTicket,
    case: LifeCase,
    why: &'static str,
}

/// The lines of `regressions.txt`, seed, model and why, each with its case.
fn regressions() -> Vec<Regression> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let lines = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    let regression = |line: &'static str| {
        let (seed, rest) = line.split_once(' ').expect("a seed");
        let (model, why) = rest.split_once(' ').expect("a model");
        let model = match model {
            "digest" => ComputeModelKind::Digest,
            "float" => ComputeModelKind::Float,
            other => panic!("no model is called {other}: {line}"),
        };
        let ticket = LifeTicket { seed: seed.parse().expect("a number"), model };
        let case = LifeCase::load(&folder.join(ticket.file_name()));
        Regression { ticket, case: case.unwrap_or_else(|error| panic!("{error}")), why }
    };
    let regressions: Vec<_> = lines.map(regression).collect();
    let files = fs::read_dir(&folder).expect("a folder").count();
    assert_eq!(files, regressions.len(), "every case has its line");
    regressions
}

#[test]
fn a_thousand_clusters_live_through_their_faults_and_show_every_marker() {
    let report = pass(false, tickets(DIGEST_LIVES, ComputeModelKind::Digest));
    // Faults are there for a cluster that trains.
    assert!(report.faults_in_training * 10 > report.faults * 9, "{report}");
    assert!(report.undisturbed_lives * 20 < report.lives, "{report}");
}

#[test]
fn clusters_that_compute_live_through_their_faults() {
    pass(false, tickets(FLOAT_LIVES, ComputeModelKind::Float));
}

#[test]
fn lives_that_failed_once_pass() {
    for Regression { ticket, case, why } in regressions() {
        let life = LifeResult::of(&case);
        assert_eq!(life.outcome.failure, None, "{ticket} again; it was: {why}");
        assert!(life.outcome.steps >= case.options.steps, "{ticket} ends before its last step");
    }
}

#[test]
fn a_seed_is_the_same_life_whenever_and_beside_whomever_it_is_lived() {
    pass(
        true,
        tickets(TWICE_LIVES, ComputeModelKind::Digest).chain(tickets(2, ComputeModelKind::Float)),
    );
    let alone = tickets(TWICE_LIVES, ComputeModelKind::Digest)
        .map(|ticket| LifeResult::of(&ticket.case()).digest);
    let alone: Vec<u64> = alone.collect();
    let beside = thread::scope(|scope| {
        let live = |ticket: LifeTicket| scope.spawn(move || LifeResult::of(&ticket.case()).digest);
        let lives: Vec<_> = tickets(TWICE_LIVES, ComputeModelKind::Digest).map(live).collect();
        lives.into_iter().map(|life| life.join().expect("it lives")).collect::<Vec<_>>()
    });
    assert_eq!(alone, beside);
}

/// Lives whose seeds drew another schedule, with slices: clusters grow, shrink and start again
/// under plans that all cut sequences alike.
#[test]
fn clusters_that_cut_sequences_live_through_their_faults() {
    let lives = (1..=SLICED_DIGEST_LIVES).map(|seed| (seed, ComputeModelKind::Digest));
    for (seed, model) in
        lives.chain((1..=SLICED_FLOAT_LIVES).map(|seed| (seed, ComputeModelKind::Float)))
    {
        let mut case = LifeCase::draw(seed, model);
        case.options.kind = ScheduleKind::Seq1F1B;
        let life = LifeResult::of(&case);
        assert_eq!(life.outcome.failure, None, "seed {seed}, {model:?}");
        assert!(life.outcome.steps >= case.options.steps, "seed {seed} ends before its last step");
    }
}

/// The same with lanes that run in two directions: where the schedule does not have so many stages,
/// others go on with the same lanes.
#[test]
fn clusters_that_have_the_model_twice_live_through_their_faults() {
    let lives = (1..=REPLICAS_DIGEST_LIVES).map(|seed| (seed, ComputeModelKind::Digest));
    let mut faults = 0;
    let mut halted = Vec::new();
    for (seed, model) in
        lives.chain((1..=REPLICAS_FLOAT_LIVES).map(|seed| (seed, ComputeModelKind::Float)))
    {
        let mut case = LifeCase::draw(seed, model);
        case.options.kind =
            if seed.is_multiple_of(3) { ScheduleKind::Gems } else { ScheduleKind::Chimera };
        case.options.microbatches = if seed.is_multiple_of(2) { 2 } else { 4 };
        case.options.lanes = LaneCount::new(2).expect("a power of two");
        // Two directions have a lane each, and no other pipeline has one.
        case.options.replicas = ReplicaCount::ONE;
        let life = LifeResult::of(&case);
        assert_eq!(life.outcome.failure, None, "seed {seed}, {model:?}");
        if life.outcome.steps < case.options.steps {
            assert!(
                life.outcome.markers.count(Marker::Halted) > 0,
                "seed {seed} ends before its last step"
            );
            halted.push(seed);
        }
        faults += life.outcome.faults;
    }
    assert!(faults > 0, "nothing was disturbed");
    assert!(halted.len() <= TWICE_HALTED_MAX, "{halted:?} of them were halted");
}

/// Several pipelines: when a worker is lost, or is about to go, another one at its stage takes over what it
/// did; who joins gets such a place, or plans in which nobody stands in two pipelines follow.
#[test]
fn clusters_of_several_pipelines_are_rerouted_and_live_on() {
    let lives = (1..=PIPELINES_DIGEST_LIVES).map(|seed| (seed, ComputeModelKind::Digest));
    let kinds = [ScheduleKind::ZbH1, ScheduleKind::ZbV, ScheduleKind::OneFOneB, ScheduleKind::Gems];
    let seen = [
        Marker::Rerouted,
        Marker::DrainRerouted,
        Marker::PlaceSplit,
        Marker::ShardRerouted,
        Marker::PlaceGiven,
        Marker::Unshared,
    ];
    let mut counts = [0; 6];
    for (seed, model) in
        lives.chain((1..=PIPELINES_FLOAT_LIVES).map(|seed| (seed, ComputeModelKind::Float)))
    {
        let mut case = LifeCase::draw(seed, model);
        let replicas = if seed.is_multiple_of(3) { 4 } else { 2 };
        case.options.kind = kinds[seed as usize % kinds.len()];
        case.options.microbatches = 8;
        case.options.lanes = LaneCount::new(8).expect("a power of two");
        case.options.replicas = ReplicaCount::new(replicas).expect("a power of two");
        if seed.is_multiple_of(6) {
            // Of four replicas in two shards two have the moments of each: one more than is lost.
            (case.options.sharded, case.options.copies, case.options.tied) = (true, 1, false);
        }
        case.options.blocks = case.options.blocks.min(case.options.workers.div_ceil(2).max(2));
        let life = LifeResult::of(&case);
        assert_eq!(life.outcome.failure, None, "seed {seed}, {model:?}");
        assert!(life.outcome.steps >= case.options.steps, "seed {seed} ends before its last step");
        for (count, marker) in counts.iter_mut().zip(seen) {
            *count += life.outcome.markers.count(marker);
        }
    }
    println!("{seen:?}: {counts:?}");
    let least = [10, 0, 0, 0, 5, 5];
    assert!(counts.iter().zip(least).all(|(count, least)| *count > least), "{seen:?}: {counts:?}");
}
