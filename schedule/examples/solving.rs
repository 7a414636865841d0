//! How long solving takes: `cargo run --release -p zbelastic-schedule --example solving`.
//!
//! First single problems, with the check of what was found and its lowering. Then a table of small
//! ones as `schedule solve --csv` has them, on one core.

#![expect(clippy::disallowed_methods, reason = "a measurement has a clock")]

use std::time::Instant;

use zbelastic_schedule::{
    ChunkCosts, LowerOptions, Placement, ScheduleProblem, StageCosts, Window, check, lower, solve,
};

fn stage(f: f64, b: f64, w: f64, limit: f64) -> StageCosts {
    let chunks = ChunkCosts { f, b, w, after_forward: 1.0, after_input_gradient: 0.5 };
    StageCosts { chunks, limit }
}

fn one(placement: Placement, m: u32, limit: f64) {
    let stages = vec![stage(10.0, 11.0, 8.0, limit); placement.stage_count() as usize];
    let p = placement.stage_count();
    let shape = placement.shape();
    let problem = ScheduleProblem::of_stages(placement, &stages, 0.5, m);
    let mut best = f64::INFINITY;
    let mut gap = 0.0;
    for _ in 0..3 {
        let began = Instant::now();
        let solution = solve(&problem).expect("legal");
        check(&solution.program).expect("legal");
        let options = LowerOptions { window: Window::One, early_head_weights: true };
        let lowered = lower(&solution.program, options);
        check(&lowered).expect("legal");
        best = best.min(began.elapsed().as_secs_f64() * 1e3);
        gap = solution.gap();
    }
    println!("{shape} p={p} m={m} limit {limit}: {best:.2} ms, gap {:.3} %", 100.0 * gap);
}

/// A number from 0 to 1 that depends on `index` alone.
fn fraction(index: u32) -> f64 {
    f64::from(index.wrapping_mul(2_654_435_769) >> 8) / f64::from(1 << 24)
}

fn many(name: &str, placement: fn(u32) -> Placement, count: u32) {
    let problem = |row: u32| {
        let p = 2 + row % 7;
        let m = 4 + (row / 7) % 13;
        let is_even = row.is_multiple_of(2);
        let limit = [1.0, 1.25, 1.5, 2.0][(row / 3) as usize % 4];
        let stage = |index: u32| {
            let slow = if is_even { 1.0 } else { 1.0 + 0.5 * fraction(row * 31 + index) };
            let fractions = [1, 2, 3].map(|which| fraction(row * 7 + which));
            let [f, b, w] = fractions;
            stage(
                slow * (8.0 + 4.0 * f),
                slow * (8.0 + 4.0 * b),
                slow * (5.0 + 5.0 * w),
                limit * f64::from(p),
            )
        };
        let stages: Vec<_> = (0..p).map(stage).collect();
        ScheduleProblem::of_stages(placement(p), &stages, fraction(row * 3), m)
    };
    let problems: Vec<ScheduleProblem> = (0..count).map(problem).collect();
    let began = Instant::now();
    let gaps: Vec<f64> =
        problems.iter().map(|problem| solve(problem).expect("legal").gap()).collect();
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    let open = gaps.iter().filter(|gap| **gap > 0.0).count();
    let mean = gaps.iter().sum::<f64>() / f64::from(count);
    println!(
        "{name}: {count} rows, {rate:.0} a second, {open} not at the bound, mean gap {:.4} %",
        100.0 * mean
    );
}

fn main() {
    one(Placement::line(8), 64, 8.0);
    one(Placement::line(8), 64, 12.0);
    one(Placement::line(32), 128, 32.0);
    one(Placement::line(32), 128, 48.0);
    one(Placement::line(128), 1024, 128.0);
    one(Placement::line(128), 1024, 200.0);
    one(Placement::vee(8), 64, 8.0);
    one(Placement::vee(8), 64, 12.0);
    one(Placement::vee(32), 128, 32.0);
    one(Placement::vee(32), 128, 64.0);
    one(Placement::vee(128), 1024, 128.0);
    one(Placement::vee(128), 1024, 256.0);
    many("line", Placement::line, 1_000);
    many("vee", Placement::vee, 400);
}
