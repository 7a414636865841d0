//! What stages on a device report of their state: added up where it lies, whatever became of the
//! step before, and what a processor's copies have.

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{Family, model_layers};
use zbelastic_trainer::stage::StageSetup;

use crate::common::{PipelineOutcome, StageCluster, corpus, plan, policy, setup, tiny_model};
use crate::two;

const STEPS: u64 = 6;
const STAGES: u32 = 3;

/// A run of two kinds of devices, as far as orders make them, that attests at every so many steps.
fn attesting(
    every: u64,
    window: Window,
    nonfinite: NonfinitePolicy,
    more: impl Fn(&mut StageSetup),
) -> Option<PipelineOutcome> {
    let model = tiny_model(Family::Llama);
    let precision = Precision::Bf16;
    let _compiler = two(precision)?;
    let plan = plan(&model, ScheduleKind::ZbH1, STAGES, window);
    let mut setup = setup(model, plan, STEPS);
    (setup.attest_every, setup.copies_wanted) = (every, true);
    more(&mut setup);
    let policy = policy(setup.clip_norm, nonfinite);
    let backend = |stage: zbelastic_types::StageIndex| {
        let [one, other] = two(precision).expect("there was a compiler");
        if stage.0.is_multiple_of(2) { one } else { other }
    };
    let cluster = StageCluster::on_backends(&setup, policy, 3, corpus(), backend);
    Some(cluster.witnessed(&setup).run())
}

#[test]
fn a_device_attests_the_state_that_lies_there_and_at_processors() {
    let layers = model_layers(&tiny_model(Family::Llama)).len();
    for window in [Window::Zero, Window::One] {
        for every in [1, 2, 3] {
            let clipping = |setup: &mut StageSetup| setup.clip_norm = Some(0.5);
            let Some(outcome) = attesting(every, window, NonfinitePolicy::Skip, clipping) else {
                return;
            };
            assert!(outcome.verdicts("clip") > 0);
            let steps = (0..STEPS).filter(|step| step.is_multiple_of(every)).count();
            assert_eq!(outcome.witnessed, steps * layers, "{window} {every}");
        }
    }
}

/// A step that is left out leaves a state that no commit added up, or not lately, and one that is
/// run again finds the state that was reported before.
#[test]
fn steps_that_are_left_out_or_run_again_change_nothing_that_is_reported() {
    let layers = model_layers(&tiny_model(Family::Llama)).len();
    let skip = NonfinitePolicy::Skip;
    let replay = NonfinitePolicy::Replay;
    for (every, step, policy, reported) in
        [(1, 2, skip, 6), (2, 2, skip, 3), (2, 4, skip, 3), (1, 3, replay, 7), (2, 3, replay, 4)]
    {
        let injected = |setup: &mut StageSetup| {
            let injection = format!("step={step},tensor=layers.3.mlp.down,value=nan");
            setup.injections = vec![injection.parse().expect("a legal injection")];
        };
        let Some(outcome) = attesting(every, Window::One, policy, injected) else { return };
        assert_eq!(outcome.verdicts("skip") + outcome.verdicts("replay"), 1);
        assert_eq!(outcome.witnessed, reported * layers, "every {every}, {step}");
    }
}
