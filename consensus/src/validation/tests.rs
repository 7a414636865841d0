//! Verdicts, tallies, ledgers and stage halves.

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use zbelastic_types::{Attempt, Generation, StageIndex, Step, TensorIndex};

use super::verdict::VerdictHistory;
use super::{
    CandidateAction, Gate, GradientReport, GuardPolicy, LeaderHalf, Ledger, NonfinitePolicy,
    Prefix, Reason, ReportRefusal, SPIKE_SKIPS_MAX, SPIKE_WARMUP, Seal, SealApplication,
    SealRefusal, StageHalf, Tally, TallySummary, TensorSum, Turn, Verdict, clip_coefficient,
    decide,
};

const POLICY: GuardPolicy = GuardPolicy {
    clip_norm: Some(1.0),
    nonfinite: NonfinitePolicy::Skip,
    replays_max: 1,
    spike_deviations: None,
};
const REPLAYING: GuardPolicy = GuardPolicy { nonfinite: NonfinitePolicy::Replay, ..POLICY };

fn turn(step: u64, attempt: u32) -> Turn {
    Turn { generation: Generation(3), step: Step(step), attempt: Attempt(attempt) }
}

fn sum(tensor: u32, square_sum: f64) -> TensorSum {
    let nonfinite = u64::from(!square_sum.is_finite());
    TensorSum { tensor: TensorIndex(tensor), square_sum, nonfinite }
}

fn report(turn: Turn, stage: u32, sums: Vec<TensorSum>, loss_sum: Option<f64>) -> GradientReport {
    GradientReport { turn, stage: StageIndex(stage), sums, loss_sum }
}

fn summary(squares: &[f64], loss_sum: f64) -> TallySummary {
    let mut tally = Tally::new(turn(0, 0), squares.len() as u32);
    let sums = squares.iter().enumerate().map(|(i, square)| sum(i as u32, *square)).collect();
    tally.add(&report(turn(0, 0), 0, sums, Some(loss_sum))).expect("a first report");
    tally.summary().expect("complete")
}

const QUIET: VerdictHistory<'static> = VerdictHistory { norms: &[], replays: 0, spike_skips: 0 };

#[test]
fn verdict_follows_the_norm_and_the_policy() {
    let check = |squares: &[f64], loss: f64, policy: &GuardPolicy, replays, verdict| {
        let history = VerdictHistory { replays, ..QUIET };
        assert_eq!(decide(&summary(squares, loss), policy, history).verdict, verdict);
    };
    let unclipped = GuardPolicy { clip_norm: None, ..POLICY };
    let barely = (1.0 - 2e-6) * (1.0 - 2e-6);
    check(&[0.25, 0.25], 1.0, &POLICY, 0, Verdict::Keep);
    check(&[barely], 1.0, &POLICY, 0, Verdict::Keep);
    let coefficient = clip_coefficient(1.0, 1.0) as f32;
    check(&[0.5, 0.5], 1.0, &POLICY, 0, Verdict::Clip { coefficient });
    assert!(coefficient < 1.0, "a norm of exactly the clip norm is clipped");
    check(&[1e10], 1.0, &unclipped, 0, Verdict::Keep);
    check(&[1.0, f64::NAN], 1.0, &POLICY, 0, Verdict::Skip);
    check(&[f64::INFINITY, 1.0], 1.0, &REPLAYING, 0, Verdict::Replay);
    check(&[f64::INFINITY, 1.0], 1.0, &REPLAYING, 1, Verdict::Skip);
    check(&[0.1], f64::NAN, &POLICY, 0, Verdict::Skip);
    check(&[0.1], f64::NAN, &REPLAYING, 0, Verdict::Replay);
    check(&[4.0], f64::INFINITY, &unclipped, 0, Verdict::Skip);
}

#[test]
fn reason_names_the_first_bad_tensor_in_model_order() {
    let found = decide(&summary(&[1.0, f64::NAN, f64::NAN], 1.0), &POLICY, QUIET).reason;
    let tensor = TensorIndex(1);
    let expected = Reason::NonfiniteGradient { tensor, values: 1, tensor_count: 2, replays: 0 };
    assert_eq!(found, expected);
}

/// Only a node that lies reports such sums, and they must not reach the ledger of norms.
#[test]
fn sums_that_overflow_together_are_no_norm_to_clip_to_nothing() {
    let both = summary(&[1.0, 1e308, 1e308], 1.0);
    let found = decide(&both, &POLICY, QUIET);
    let tensor = TensorIndex(2);
    let expected = Reason::NonfiniteGradient { tensor, values: 0, tensor_count: 1, replays: 0 };
    assert_eq!((found.verdict, found.reason), (Verdict::Skip, expected));
    let text = "the sum of squares overflows at tensor 2 after 0 replays";
    assert_eq!(found.reason.to_string(), text);
    assert_eq!(decide(&both, &REPLAYING, QUIET).verdict, Verdict::Replay);
    let unclipped = GuardPolicy { clip_norm: None, ..POLICY };
    assert_eq!(decide(&both, &unclipped, QUIET).verdict, Verdict::Skip);
}

#[test]
fn a_step_that_clipping_scales_to_nothing_is_left_out() {
    const LARGE: Reason = Reason::LargeNorm { clip_norm: 1.0 };
    // 2^-149 is the least that an `f32` can be; half of it and less is 0.
    let least = f64::from(f32::from_bits(1));
    let check = |coefficient: f64, policy, verdict: &str| {
        let norm = 1.0 / coefficient;
        let found = decide(&summary(&[norm * norm], 1.0), policy, QUIET);
        assert_eq!((found.verdict.name(), found.reason), (verdict, LARGE));
        assert_ne!(found.verdict.coefficient(), Some(0.0));
    };

    check(least, &POLICY, "clip");
    check(least / 4.0, &POLICY, "skip");
    check(least / 4.0, &REPLAYING, "replay");
}

#[test]
fn a_spike_is_skipped_only_after_warm_up_and_only_so_often() {
    let policy = GuardPolicy { spike_deviations: Some(6.0), clip_norm: None, ..POLICY };
    let norms: Vec<f64> = (0..SPIKE_WARMUP).map(|i| 1.0 + (i % 2) as f64 * 0.2).collect();
    let check = |norm: f64, known: usize, spike_skips: u32, verdict: Verdict| {
        let history = VerdictHistory { norms: &norms[..known], replays: 0, spike_skips };
        let found = decide(&summary(&[norm * norm], 1.0), &policy, history);
        assert_eq!(found.verdict, verdict, "norm {norm}: {}", found.reason);
    };
    // Mean 1.1, deviation 0.1: six deviations are 1.7.
    check(1.69, SPIKE_WARMUP, 0, Verdict::Keep);
    check(1.71, SPIKE_WARMUP, 0, Verdict::Skip);
    check(100.0, SPIKE_WARMUP - 1, 0, Verdict::Keep);
    check(100.0, SPIKE_WARMUP, SPIKE_SKIPS_MAX - 1, Verdict::Skip);
    check(100.0, SPIKE_WARMUP, SPIKE_SKIPS_MAX, Verdict::Keep);
}

#[test]
fn norms_that_never_vary_tolerate_a_change_of_a_few_per_cent() {
    let policy = GuardPolicy { spike_deviations: Some(6.0), clip_norm: None, ..POLICY };
    let history = VerdictHistory { norms: &[1.0; SPIKE_WARMUP], ..QUIET };
    let verdict = |norm: f64| decide(&summary(&[norm * norm], 1.0), &policy, history).verdict;
    assert_eq!(verdict(1.05), Verdict::Keep);
    assert_eq!(verdict(1.07), Verdict::Skip);
}

#[test]
fn gate_closes_where_the_verdict_would() {
    let norm = |norm: f64| Gate::of(norm * norm, Some(1.0));
    assert_eq!(norm(0.999_998), Gate::Open);
    assert_eq!(norm(1.0), Gate::ClosedLarge);
    assert_eq!(Gate::of(f64::NAN, Some(1.0)), Gate::ClosedNonfinite);
    assert_eq!(Gate::of(f64::INFINITY, None), Gate::ClosedNonfinite);
    assert_eq!(Gate::of(1e300, None), Gate::Open);
}

#[test]
fn tally_refuses_what_does_not_belong_and_stays_as_it_was() {
    let mut tally = Tally::new(turn(5, 1), 2);
    let at = turn(5, 1);
    let first = report(at, 0, vec![sum(0, 1.0)], None);
    assert_eq!(tally.add(&first), Ok(()));
    assert_eq!(tally.add(&first), Ok(()), "a repeated report changes nothing");
    for other in [turn(4, 1), turn(6, 1), turn(5, 0), turn(5, 2)] {
        let refused = tally.add(&report(other, 1, vec![sum(1, 1.0)], Some(1.0)));
        assert_eq!(refused, Err(ReportRefusal::OtherTurn { expected: at, found: other }));
    }
    let mut stale = turn(5, 1);
    stale.generation = Generation(2);
    assert!(tally.add(&report(stale, 1, vec![sum(1, 1.0)], None)).is_err());
    let refused = tally.add(&report(at, 1, vec![sum(2, 1.0)], None));
    assert!(matches!(refused, Err(ReportRefusal::UnknownTensor { .. })));
    let refused = tally.add(&report(at, 1, vec![sum(1, 3.0), sum(0, 2.0)], Some(1.0)));
    assert!(matches!(refused, Err(ReportRefusal::Contradiction { .. })));
    assert_eq!(tally.summary(), None);
    assert_eq!(tally.add(&report(at, 1, vec![sum(1, 3.0)], Some(7.0))), Ok(()));
    let refused = tally.add(&report(at, 1, vec![sum(1, 3.0)], Some(8.0)));
    assert!(matches!(refused, Err(ReportRefusal::LossContradiction { .. })));
    let summary = tally.summary().expect("both tensors and the loss are there");
    assert_eq!((summary.square_sum(), summary.loss_sum), (4.0, 7.0));
}

#[test]
fn a_repeated_nan_is_no_contradiction() {
    let mut tally = Tally::new(turn(0, 0), 1);
    let nan = report(turn(0, 0), 0, vec![sum(0, f64::NAN)], Some(f64::NAN));
    assert_eq!(tally.add(&nan), Ok(()));
    assert_eq!(tally.add(&nan), Ok(()));
}

fn seal_of(verdict: Verdict, at: Turn, updates_after: u64) -> Seal {
    Seal {
        turn: at,
        verdict,
        reason: Reason::Sound,
        square_sum_bits: 4.0f64.to_bits(),
        loss_sum_bits: 1.0f64.to_bits(),
        updates_after,
        cursor_after: at.after(verdict).step,
    }
}

/// A stage half that has reported step 7, with its gate open or not.
fn reported(is_ahead: bool) -> StageHalf {
    let mut half = StageHalf::new(turn(7, 0), 5, Some(1.0));
    let square = if is_ahead { 0.25 } else { 4.0 };
    let report = half.report(StageIndex(1), vec![sum(0, square)], None);
    let gate = half.gate(&Prefix::of(&report, None));
    assert_eq!(gate == Gate::Open, is_ahead);
    half
}

#[test]
fn applying_a_seal_says_what_to_do_with_the_candidate() {
    let clip = Verdict::Clip { coefficient: 0.5 };
    let compute = |coefficient| CandidateAction::Compute { coefficient };
    let check = |is_ahead, verdict: Verdict, candidate, drops_ahead, next| {
        let updates = 5 + u64::from(verdict.coefficient().is_some());
        let mut half = reported(is_ahead);
        let found = half.apply(&seal_of(verdict, turn(7, 0), updates));
        let commit = verdict.coefficient();
        assert_eq!(found, Ok(SealApplication { candidate, commit, drops_ahead, next }));
        assert_eq!((half.open_turn(), half.updates()), (next, updates));
    };
    check(true, Verdict::Keep, CandidateAction::Stay, false, turn(8, 0));
    check(false, Verdict::Keep, compute(1.0), false, turn(8, 0));
    check(true, clip, compute(0.5), true, turn(8, 1));
    check(false, clip, compute(0.5), true, turn(8, 1));
    check(true, Verdict::Skip, CandidateAction::Drop, true, turn(8, 1));
    check(false, Verdict::Skip, CandidateAction::None, true, turn(8, 1));
    check(true, Verdict::Replay, CandidateAction::Drop, true, turn(7, 1));
    check(false, Verdict::Replay, CandidateAction::None, true, turn(7, 1));
}

#[test]
fn turns_order_as_they_happened_and_no_tag_comes_twice() {
    let clip = Verdict::Clip { coefficient: 0.5 };
    let verdicts =
        [Verdict::Keep, Verdict::Replay, Verdict::Keep, clip, Verdict::Replay, Verdict::Skip];
    let mut open = turn(0, 0);
    let mut tags = Vec::new();
    for verdict in verdicts {
        // A stage tags the open step, and the next one if it goes ahead.
        tags.extend([open, open.after(Verdict::Keep)]);
        open = open.after(verdict);
        if verdict != Verdict::Keep {
            assert!(tags.iter().all(|tag| *tag < open), "what was dropped lies before {open}");
        }
    }
    assert_eq!(open, turn(4, 4));
}

#[test]
fn r2_and_r8_a_seal_is_applied_once_and_under_its_own_plan() {
    let mut half = reported(true);
    let mut other = seal_of(Verdict::Keep, turn(7, 0), 6);
    other.turn.generation = Generation(2);
    let (expected, found) = (Generation(3), Generation(2));
    assert_eq!(half.apply(&other), Err(SealRefusal::OtherGeneration { expected, found }));
    let seal = seal_of(Verdict::Keep, turn(7, 0), 6);
    assert!(half.apply(&seal).is_ok());
    let (expected, found) = (turn(8, 0), turn(7, 0));
    assert_eq!(half.apply(&seal), Err(SealRefusal::Past { expected, found }));
    assert_eq!(half.updates(), 6);
    let found = turn(9, 0);
    assert!(half.check(&seal_of(Verdict::Keep, turn(8, 0), 7)).is_ok());
    let ahead = seal_of(Verdict::Keep, found, 7);
    assert_eq!(half.apply(&ahead), Err(SealRefusal::Gap { expected, found }));
}

#[test]
#[should_panic(expected = "sealed before it was reported")]
fn a_seal_on_what_was_never_reported_is_our_own_mistake() {
    let mut half = StageHalf::new(turn(0, 0), 0, None);
    let _ = half.apply(&seal_of(Verdict::Keep, turn(0, 0), 1));
}

/// What was dropped is no part of what is normal, or one spike would hide the next.
#[test]
fn only_steps_that_were_taken_count_in_the_picture_of_what_is_normal() {
    let mut ledger = Ledger::new(Generation(3), Step(0), 0);
    let mut counted = 0;
    let clip = Verdict::Clip { coefficient: 0.5 };
    for verdict in [Verdict::Skip, Verdict::Replay, Verdict::Keep, Verdict::Skip, clip] {
        counted += usize::from(verdict.coefficient().is_some());
        ledger.apply(&seal_of(verdict, ledger.open_turn(), counted as u64)).expect("it fits");
        assert_eq!(ledger.norms().len(), counted, "{verdict:?}");
    }
}

#[test]
fn leader_proposes_when_nothing_is_missing_and_follows_the_ledger() {
    let mut ledger = Ledger::new(Generation(3), Step(0), 0);
    let mut leader = LeaderHalf::new(&ledger, 2, REPLAYING);
    let mut run = |at: Turn, squares: [f64; 2]| {
        let upper = report(at, 1, vec![sum(1, squares[1])], Some(3.0));
        assert_eq!(leader.handle_report(&ledger, &upper), Ok(None));
        let lower = report(at, 0, vec![sum(0, squares[0])], None);
        let proposal = leader.handle_report(&ledger, &lower).expect("counted");
        let proposal = proposal.expect("complete");
        ledger.apply(&proposal.seal).expect("in turn");
        assert!(ledger.apply(&proposal.seal).is_err(), "R8");
        (proposal.seal.verdict.name(), proposal.went_ahead, ledger.updates())
    };
    assert_eq!(run(turn(0, 0), [0.1, 0.1]), ("keep", true, 1));
    assert_eq!(run(turn(1, 0), [0.1, 9.0]), ("clip", true, 2));
    assert_eq!(run(turn(2, 1), [9.0, 0.1]), ("clip", false, 3));
    assert_eq!(run(turn(3, 2), [0.1, f64::NAN]), ("replay", true, 3));
    assert_eq!(run(turn(3, 3), [0.1, f64::NAN]), ("skip", true, 3));
    assert_eq!(run(turn(4, 4), [0.1, f64::NAN]), ("replay", true, 3));
    assert_eq!(run(turn(4, 5), [0.1, 0.1]), ("keep", true, 4));
    assert_eq!(run(turn(5, 5), [0.1, 0.1]), ("keep", true, 5));
    assert_eq!(ledger.open_turn(), turn(6, 5));
}

/// A stage without sums, whose layers others own, has to have computed its gradient as well.
#[test]
fn leader_waits_for_the_stages_that_have_no_sums() {
    let ledger = Ledger::new(Generation(3), Step(0), 0);
    let mut leader = LeaderHalf::new(&ledger, 1, REPLAYING).of_stages(2);
    let at = turn(0, 0);
    let owner = report(at, 0, vec![sum(0, 0.1)], Some(3.0));
    assert_eq!(leader.handle_report(&ledger, &owner), Ok(None));
    assert_eq!(leader.handle_report(&ledger, &owner), Ok(None), "the same one");
    let other = report(at, 1, Vec::new(), None);
    let proposal = leader.handle_report(&ledger, &other).expect("counted");
    assert_eq!(proposal.map(|proposal| proposal.seal.turn), Some(at));
}

fn squares() -> impl Strategy<Value = Vec<f64>> {
    let special = prop::sample::select(vec![0.0, f64::NAN, f64::INFINITY, 1e-300, 1e77]);
    prop::collection::vec(
        prop::strategy::Union::new_weighted(vec![
            (20, (0.0f64..0.4).boxed()),
            (1, special.boxed()),
        ]),
        1..12,
    )
}

proptest! {
    /// Invariant N5.
    #[test]
    fn verdict_does_not_depend_on_the_order_of_reports(
        squares in squares(),
        keys in prop::collection::vec(any::<u32>(), 12),
        cut in 0usize..12,
    ) {
        let mut order: Vec<usize> = (0..squares.len()).collect();
        order.sort_by_key(|i| keys[*i]);
        let at = turn(0, 0);
        let mut tally = Tally::new(at, squares.len() as u32);
        let cut = cut % squares.len();
        for (stage, part) in [&order[cut..], &order[..cut]].into_iter().enumerate() {
            let sums = part.iter().map(|i| sum(*i as u32, squares[*i])).collect();
            let loss = (stage == 1).then_some(2.0);
            prop_assert_eq!(tally.add(&report(at, stage as u32 + 1, sums, loss)), Ok(()));
        }
        let found = decide(&tally.summary().expect("complete"), &REPLAYING, QUIET);
        let straight = decide(&summary(&squares, 2.0), &REPLAYING, QUIET);
        prop_assert_eq!(found.verdict, straight.verdict);
        prop_assert_eq!(found.reason, straight.reason);
        prop_assert_eq!(found.square_sum.to_bits(), straight.square_sum.to_bits());
    }

    /// A step that is kept never met a closed gate, in whatever pieces its sums came down, as long
    /// as the pieces are in model order.
    #[test]
    fn a_kept_step_met_no_closed_gate(squares in squares()) {
        let verdict = decide(&summary(&squares, 1.0), &POLICY, QUIET).verdict;
        let mut prefix = 0.0;
        let mut gates = vec![Gate::Open];
        for square in &squares {
            prefix += square;
            let gate = Gate::of(prefix, POLICY.clip_norm);
            let was_open = gates.last() == Some(&Gate::Open);
            prop_assert!(was_open || gate != Gate::Open, "a closed gate stays closed");
            gates.push(gate);
        }
        let all_open = gates.iter().all(|gate| *gate == Gate::Open);
        prop_assert_eq!(verdict == Verdict::Keep, all_open);
    }
}
