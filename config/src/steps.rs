//! Settings that need a step, a verdict and a cluster, and are refused with a schedule that has
//! none.

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::{OffloadMode, RecomputeMode, RunConfig, WindowChoice};

/// Whether a cluster can run `config`: only a schedule with steps can be sealed and rolled back.
///
/// # Errors
/// If its schedule is asynchronous.
pub fn check_cluster_can_run(config: &RunConfig) -> Result<(), CommandFailure> {
    match config.schedule.kinds() {
        Ok(_) => Ok(()),
        Err(kind) => {
            let detail = FailureDetail::new(format!("{kind} is asynchronous"))
                .at("schedule.kind")
                .why("a cluster seals step by step, and such a schedule has no steps")
                .hint("zbelastic train, which runs it in one process, or --schedule auto");
            Err(CommandFailure::usage("the configuration", vec![detail]))
        }
    }
}

/// Whether a run can go on from another one's checkpoint: one that is an island goes on from what the
/// islands exchanged, and of a branch there is nothing yet.
///
/// # Errors
/// If it cannot.
pub fn check_no_island(config: &RunConfig, flag: &str) -> Result<(), CommandFailure> {
    if config.sync.is_none() {
        return Ok(());
    }
    let what = "an island does not go on from the checkpoint of another run";
    let detail = FailureDetail::new("its folders have no weights of that step").at(flag).hint(
        "a run from its model: --set model.from_hf=FOLDER/model, with folders of its own in sync.folders",
    );
    let mut failure = CommandFailure::new(FailureCode::WrongState, what);
    failure.details = vec![detail];
    Err(failure)
}

/// Whether `config` sets nothing that needs steps.
///
/// # Errors
/// With everything that does.
pub fn check_needs_no_steps(config: &RunConfig, kind: AsyncKind) -> Result<(), CommandFailure> {
    let refused = |key: &str, why: &str, hint: &str| {
        FailureDetail::new(format!("{kind} is asynchronous")).at(key).why(why).hint(hint)
    };
    let all = [
        (
            matches!(config.window, WindowChoice::Fixed(_)),
            refused(
                "schedule.window",
                "no verdict is waited for, so nothing can run ahead of one",
                "--window auto",
            ),
        ),
        (
            !config.batch.lanes.is_one(),
            refused(
                "train.lanes",
                "an update adds up its few microbatches as one chain, and no step is made of several",
                "train.lanes = 1",
            ),
        ),
        (
            config.guard.nonfinite == NonfinitePolicy::Replay,
            refused(
                "guard.nonfinite",
                "nothing can be run again: a stage leaves its own update out and goes on",
                "--set guard.nonfinite=skip",
            ),
        ),
        (
            config.guard.spike_deviations.is_some(),
            refused(
                "guard.gnorm_z",
                "no stage knows the norm of a whole step",
                "--set guard.gnorm_z=0",
            ),
        ),
        (
            config.memory.recompute != RecomputeMode::None,
            refused(
                "memory.recompute",
                "a backward pass may run on other weights than its F, and what is made again on them \
                 would be something else",
                "--set memory.recompute=none",
            ),
        ),
        (
            config.memory.offload == OffloadMode::Needed,
            refused(
                "memory.offload",
                "what may leave is found for a step, and there is none",
                "--set memory.offload=schedule",
            ),
        ),
        (
            config.memory.shard_optimizer,
            refused(
                "memory.shard_optimizer",
                "replicas share the update of a step, and there is none",
                "--set memory.shard_optimizer=false",
            ),
        ),
        (
            config.sync.is_some(),
            refused(
                "sync.every",
                "islands exchange the weights of a step, and there is none",
                "--set sync.every=0",
            ),
        ),
        (
            config.evaluate_every > 0,
            refused(
                "train.eval_every",
                "before the end there is no moment in which all stages have the same version",
                "--set train.eval_every=0, which evaluates at the end",
            ),
        ),
    ];
    let details: Vec<FailureDetail> =
        all.into_iter().filter_map(|(is_asked, detail)| is_asked.then_some(detail)).collect();
    if details.is_empty() {
        Ok(())
    } else {
        Err(CommandFailure::usage("the configuration", details))
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::asynchronous::AsyncKind;

    use super::{check_cluster_can_run, check_needs_no_steps, check_no_island};
    use crate::tests::load_text;

    fn details(text: &str) -> Vec<Option<String>> {
        let config = load_text(text).expect("legal").config;
        let failure = check_needs_no_steps(&config, AsyncKind::XPipe).expect_err("refused");
        failure.details.into_iter().map(|detail| detail.place).collect()
    }

    #[test]
    fn what_needs_steps_is_refused_with_what_to_do() {
        let text = "[schedule]\nwindow = 1\n[guard]\nnonfinite = \"replay\"\ngnorm_z = 6.0\n\
                    [train]\neval_every = 10\nlanes = 2\n[sync]\nevery = 9\nfolders = [\"a\", \"b\"]\n[memory]\nrecompute = \"full\"\noffload = \"needed\"\nshard_optimizer = true\n";
        let text = format!("[model]\npreset = \"tiny\"\n{text}");
        let expected = [
            "schedule.window",
            "train.lanes",
            "guard.nonfinite",
            "guard.gnorm_z",
            "memory.recompute",
            "memory.offload",
            "memory.shard_optimizer",
            "sync.every",
            "train.eval_every",
        ];
        assert_eq!(details(&text), expected.map(|place| Some(place.to_owned())));
    }

    #[test]
    fn stages_without_steps_compute_on_devices() {
        let text = "[model]\npreset = \"tiny\"\n[train]\ndevice = \"cuda\"\nprecision = \"bf16\"\n";
        let config = load_text(text).expect("legal").config;
        assert_eq!(check_needs_no_steps(&config, AsyncKind::PipeDream), Ok(()));
    }

    #[test]
    fn an_island_goes_on_from_no_other_run() {
        let config = |sync: &str| {
            let text = format!("[model]\npreset = \"tiny\"\n{sync}");
            load_text(&text).expect("legal").config
        };
        assert_eq!(check_no_island(&config(""), "--from"), Ok(()));
        let island = config("[sync]\nevery = 9\nfolders = [\"a\", \"b\"]\n");
        let failure = check_no_island(&island, "--from").expect_err("an island");
        assert!(failure.to_string().contains("model.from_hf"), "{failure}");
    }

    #[test]
    fn a_cluster_without_steps_is_refused() {
        let config = |kind: &str| {
            let text = format!("[model]\npreset = \"tiny\"\n[schedule]\nkind = \"{kind}\"\n");
            load_text(&text).expect("legal").config
        };
        assert_eq!(check_cluster_can_run(&config("zb-h1")), Ok(()));
        let failure = check_cluster_can_run(&config("pipedream-2bw")).expect_err("asynchronous");
        assert!(failure.to_string().contains("zbelastic train"), "{failure}");
        assert_eq!(check_cluster_can_run(&config("seq1f1b")), Ok(()));
        assert_eq!(check_needs_no_steps(&config("xpipe"), AsyncKind::XPipe), Ok(()));
    }
}
