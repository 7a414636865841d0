//! Better rules from good ones: one stage, or all behind or before it, goes by another rule, and
//! rules that are no worse stay. Random numbers come from a fixed seed, so that one problem has one
//! solution.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::pipeline::PipelineIndex;
use super::policy::{IdleAllowance, NEVER_FILLS, PassPreference, StageRule, by_rules};
use super::{BestOrder, is_small};

/// Most rules that are tried.
const TRIES_MAX: usize = 2_000;
/// Passes that are placed at most for a small problem: some milliseconds.
const SMALL_PASSES_MAX: usize = 50_000;
/// Tries for a small problem, at least and at most.
const SMALL_TRIES: (usize, usize) = (100, 2_000);
/// Tries without a better order after which it goes on from the best rules again.
const PLATEAU_MAX: usize = 150;

/// Looks for an order better than the best one.
pub(super) fn hill_climb<'a>(
    pipeline: &'a PipelineIndex<'a>,
    best: &mut BestOrder<'a>,
    allowance: &mut IdleAllowance<'_>,
) {
    let tries = if is_small(pipeline) {
        (SMALL_PASSES_MAX / pipeline.pass_count()).clamp(SMALL_TRIES.0, SMALL_TRIES.1)
    } else {
        best.tries(pipeline).min(TRIES_MAX)
    };
    let Some((mut cost, mut rules)) = best.rules.clone() else { return };
    let mut random = RuleRandom(SplitMix64::seed_from_u64(0x9e37_79b9_7f4a_7c15));
    let mut since = 0;
    for _ in 0..tries {
        if best.is_optimal() {
            return;
        }
        allowance.lower_to(cost);
        let changed = random.change(pipeline, &rules);
        if changed == rules {
            since += 1;
            continue;
        }
        let builder = by_rules(pipeline, &changed, allowance);
        let found = builder.as_ref().map_or(f64::INFINITY, |builder| builder.cost());
        if found <= cost {
            since = if found < cost { 0 } else { since + 1 };
            (cost, rules) = (found, changed.clone());
        } else {
            since += 1;
        }
        best.offer(builder, Some(changed));
        if since > PLATEAU_MAX {
            (cost, rules) = best.rules.clone().expect("it was there before");
            since = 0;
        }
    }
}

/// Multiples of the verdict's time for which a stage holds its first W back.
const HOLD_FACTORS: [f64; 8] = [0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, f64::INFINITY];

struct RuleRandom(SplitMix64);

impl RuleRandom {
    fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    fn change(&mut self, pipeline: &PipelineIndex<'_>, rules: &[StageRule]) -> Vec<StageRule> {
        let mut changed = rules.to_vec();
        let stage = self.below(rules.len());
        let range = match self.below(4) {
            0 => 0..stage + 1,
            1 => stage..rules.len(),
            _ => stage..stage + 1,
        };
        let has_several = pipeline.chunk_count() > pipeline.stage_count();
        let plain = if has_several { 10 } else { 8 };
        let is_gated = pipeline.problem.ending.is_gated();
        let field = self.below(plain + usize::from(is_gated));
        let number = self.0.next_u64();
        for rule in &mut changed[range] {
            if field == plain {
                rule.hold_factor = HOLD_FACTORS[number as usize % HOLD_FACTORS.len()];
            } else {
                change_rule(rule, field, number, pipeline.microbatch_count());
            }
        }
        changed
    }
}

fn change_rule(rule: &mut StageRule, field: usize, number: u64, microbatch_count: u32) {
    const SHARES: [f64; 7] = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, NEVER_FILLS];
    let stepped = |count: u32| {
        let by = 1 + (number >> 8) as u32 % 2;
        let count = if number & 1 == 0 { count + by } else { count.saturating_sub(by) };
        count.clamp(1, microbatch_count)
    };
    match field {
        0 => rule.first_max = stepped(rule.first_max),
        1 | 2 => rule.ahead_max = stepped(rule.ahead_max),
        3 => rule.preference = PassPreference::ALL[number as usize % PassPreference::ALL.len()],
        4 => rule.saves_w = !rule.saves_w,
        5 => rule.awaits_arrivals = !rule.awaits_arrivals,
        6 => rule.yields_to_backward = !rule.yields_to_backward,
        7 => rule.fill_share = SHARES[number as usize % SHARES.len()],
        8 => rule.upper_f_first = !rule.upper_f_first,
        _ => rule.upper_b_first = !rule.upper_b_first,
    }
}
