//! `bench lanes`: a step of one worker whose gradient is a tree of lanes, over one with a single lane.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use zbelastic_wording::CommandError;

use super::case::{BatchSplit, BenchCase};
use super::serial::SerialEngine;
use crate::args::BenchLanesArgs;

/// The fastest steps with one lane and with several.
#[derive(Debug, Serialize)]
struct LanesResult {
    config: &'static str,
    threads: u32,
    lanes: u32,
    microbatches: u32,
    one_lane_ms: f64,
    lanes_ms: f64,
    /// `lanes_ms` over `one_lane_ms`.
    ratio: f64,
}

/// Runs `bench lanes`.
pub fn run(args: &BenchLanesArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let BenchLanesArgs { config, lanes, threads, rounds, json } = *args;
    let own = BenchCase::new(config)?.batch.microbatch.sequences;
    let case = |lanes: u32| {
        BenchCase::configured(&[
            format!("model.preset={}", config.preset()),
            // Each lane has a microbatch, which is when lanes cost the most.
            format!("train.global_batch={}", own as u32 * args.lanes),
            format!("train.lanes={lanes}"),
        ])
    };
    let engine =
        |case: &BenchCase| SerialEngine::new(case, threads as usize, BatchSplit::Microbatches);
    let (one_lane, several) = (case(1)?, case(lanes)?);
    let mut engines = [engine(&one_lane)?, engine(&several)?];
    let mut best = [Duration::MAX; 2];
    for round in 0..=rounds {
        // Neither is always the first.
        for turn in [round % 2, (round + 1) % 2].map(|turn| turn as usize) {
            let step = engines[turn].steps(1);
            if round > 0 {
                best[turn] = best[turn].min(step);
            }
        }
    }
    let [one_lane_ms, lanes_ms] = best.map(|step| step.as_secs_f64() * 1e3);
    let ratio = lanes_ms / one_lane_ms;
    let microbatches = several.batch.microbatch_count;
    let config = config.name();
    if json {
        let result =
            LanesResult { config, threads, lanes, microbatches, one_lane_ms, lanes_ms, ratio };
        writeln!(out, "{}", serde_json::to_string(&result).expect("numbers are JSON"))?;
        return Ok(());
    }
    writeln!(out, "{config}, {threads} threads, {microbatches} microbatches")?;
    writeln!(out, "  one lane {one_lane_ms:.1} ms, {lanes} lanes {lanes_ms:.1} ms: {ratio:.3}")?;
    Ok(())
}
