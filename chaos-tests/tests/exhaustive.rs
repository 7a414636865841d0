//! Every order of events of a world of two, three or four stages.

use chaos_tests::exhaustive::{Exploration, ExplorationFinding, ModelBounds, explore};

/// Two stages, a spare and one death; the leader may change, and a plan may be given up.
const TWO_STAGES: ModelBounds = ModelBounds {
    stages: 2,
    spares: 1,
    steps: 3,
    deaths: 1,
    fences: 0,
    elections: 1,
    stalls: 1,
    states_max: 1_000_000,
};
/// Three stages and two deaths; there is no spare, so the plan shrinks.
const THREE_STAGES: ModelBounds =
    ModelBounds { stages: 3, spares: 0, steps: 3, deaths: 2, stalls: 0, ..TWO_STAGES };
/// In a ring of four, two workers may die that keep no copy of each other.
const FOUR_STAGES: ModelBounds = ModelBounds { stages: 4, steps: 1, elections: 0, ..THREE_STAGES };

/// A worker is taken for dead and lives on, and another one dies.
const A_FENCE: ModelBounds = ModelBounds { steps: 2, fences: 1, stalls: 0, ..TWO_STAGES };

/// Explores, and prints what came of it.
fn explored(bounds: ModelBounds) -> Exploration {
    let exploration = explore(bounds);
    let Exploration { states, actions, depth, finding } = &exploration;
    println!("{bounds:?}: {states} states, {actions} actions, up to {depth} in a row");
    if let ExplorationFinding::Broken { violation, path } = finding {
        let numbered = path.iter().enumerate();
        numbered.for_each(|(index, action)| println!("{:>3}. {action}", index + 1));
        println!("     {violation}");
    }
    exploration
}

/// All states were seen, and at least so many.
fn check_sound(bounds: ModelBounds, states_min: usize) {
    let Exploration { states, finding, .. } = explored(bounds);
    assert_eq!(finding, ExplorationFinding::Sound);
    assert!(states >= states_min, "{states} states");
}

#[test]
fn one_death_breaks_nothing_in_two_stages() {
    check_sound(TWO_STAGES, 50_000);
}

#[test]
fn two_deaths_break_nothing_in_three_stages() {
    check_sound(THREE_STAGES, 100_000);
}

#[test]
fn a_fence_and_a_death_break_nothing_in_two_stages() {
    check_sound(A_FENCE, 100_000);
}

/// A worker that loads a plan holds layers that the plan does not give it. Its inventory once left
/// them out, and the run went back when their new owner died.
#[test]
fn two_deaths_break_nothing_in_four_stages() {
    check_sound(FOUR_STAGES, 100_000);
}

#[test]
fn a_search_with_too_many_states_ends_so() {
    let exploration = explored(ModelBounds { states_max: 1000, ..TWO_STAGES });
    assert_eq!(exploration.finding, ExplorationFinding::TooMany);
}

mod without_a_rule {
    use super::{A_FENCE, ExplorationFinding, ModelBounds, TWO_STAGES, explored};
    use chaos_tests::exhaustive::ModelViolation;
    use zbelastic_consensus::mutant::{self, Mutant};
    use zbelastic_types::{Generation, Step};

    /// Takes a rule away. Only workers that die are to blame, so no plan is given up.
    fn counterexample(mutant: Mutant) -> (ModelViolation, Vec<String>) {
        counterexample_in(mutant, ModelBounds { stalls: 0, ..TWO_STAGES })
    }

    fn counterexample_in(mutant: Mutant, bounds: ModelBounds) -> (ModelViolation, Vec<String>) {
        mutant::set(Some(mutant));
        let exploration = explored(bounds);
        mutant::set(None);
        match exploration.finding {
            ExplorationFinding::Broken { violation, path } => (violation, path),
            ExplorationFinding::Sound | ExplorationFinding::TooMany => {
                panic!("{mutant:?} was not noticed")
            }
        }
    }

    /// Stages give up what undoes step 1 when its seal is proposed, the proposal is lost, and step
    /// 1 must begin anew.
    #[test]
    fn r1_a_stage_that_trusts_a_proposal_cannot_go_back() {
        let (violation, path) = counterexample(Mutant::M24UndoFreedAtProposal);
        let ModelViolation::CannotGoBack { needed, found, .. } = violation else {
            panic!("{violation}");
        };
        assert_eq!((needed, found), (Step(1), Step(2)));
        assert!(path.iter().any(|action| action.ends_with("which is only proposed")));
        let last = path.last().expect("something happened");
        assert_eq!(last, "the leader dies, and with it the last 1 of its proposals");
    }

    /// The seal of a turn that was given up comes after the plan that gave it up.
    #[test]
    fn r2_a_late_seal_counts_for_a_turn_that_nobody_computed() {
        let (violation, path) = counterexample(Mutant::R2GenerationUnchecked);
        let ModelViolation::SealedUncomputed { turn, .. } = violation else {
            panic!("{violation}")
        };
        assert_eq!((turn.generation, turn.step), (Generation(2), Step(0)));
        let [.., plan, seal] = &path[..] else { panic!("{path:?}") };
        assert_eq!(plan, "plan 2 from step 0 over workers 3, 2 is agreed on");
        assert_eq!(seal, "the keep of step 0 attempt 0 of generation 1 is agreed on");
    }

    /// A stage dies with the only copy of an update that was sealed.
    #[test]
    fn r3_a_sealed_step_dies_with_the_only_holder_of_its_update() {
        let (violation, path) = counterexample(Mutant::R3SealedBeforeHeld);
        let ModelViolation::SealedLost { version, .. } = violation else { panic!("{violation}") };
        assert_eq!(version, Step(1));
        let [.., seal, death] = &path[..] else { panic!("{path:?}") };
        assert_eq!(seal, "the keep of step 0 attempt 0 of generation 1 is agreed on");
        assert_eq!(death, "worker 1 dies");
    }

    /// A worker is taken for dead before it reports, and its report counts.
    #[test]
    fn without_the_fence_a_late_report_counts() {
        let (violation, path) = counterexample_in(Mutant::M12FencedAccepted, A_FENCE);
        let ModelViolation::FencedCounted { node } = violation else { panic!("{violation}") };
        let fence = format!("worker {node} is taken for dead, and lives on");
        assert_eq!(path, [fence, format!("worker {node} reports")]);
    }
}
