//! Steps that are clipped, skipped and replayed.

use serde_json::{Value, json};

use crate::text_folder::{STEPS, TextFolder, TrainingOutput};

fn verdicts(run: &TrainingOutput) -> Vec<String> {
    run.each("verdict").iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// The rollbacks: step, verdict and reason of each.
fn rollbacks(run: &TrainingOutput) -> Vec<[String; 3]> {
    let text = |value: &Value| value.to_string().trim_matches('"').to_owned();
    let fields_of = |event: &Value| ["step", "verdict", "reason"].map(|key| text(&event[key]));
    run.of("rollback").into_iter().map(fields_of).collect()
}

fn expected(rollbacks: &[(usize, &str, &str)]) -> Vec<[String; 3]> {
    let fields_of = |(step, verdict, tensor): &(usize, &str, &str)| {
        let reason = format!("non-finite gradient in {tensor} (1 value)");
        [step.to_string(), (*verdict).to_owned(), reason]
    };
    rollbacks.iter().map(fields_of).collect()
}

#[test]
fn a_nan_that_strikes_once_is_replayed_away() {
    let folder = TextFolder::new();
    let undisturbed = folder.run("--set train.eval_every=4");
    let check = |more: &str, bad: &[(usize, &str)]| {
        let mut arguments = format!("--set train.eval_every=4 --set guard.nonfinite=replay {more}");
        for (step, tensor) in bad {
            arguments += &format!(" --inject step={step},tensor={tensor},value=nan");
        }
        let run = folder.run(&arguments);
        let bad_steps: Vec<_> =
            bad.iter().map(|(step, tensor)| (*step, "replay", *tensor)).collect();
        assert_eq!(rollbacks(&run), expected(&bad_steps), "{arguments}");
        for (step, _) in bad {
            assert!(run.step(*step)["attempts"].as_u64() >= Some(2), "{}", run.step(*step));
        }
        assert_eq!(run.digest(), undisturbed.digest(), "{arguments}");
        for key in ["loss", "gnorm", "verdict", "clip", "lr"] {
            assert_eq!(run.each(key), undisturbed.each(key), "{arguments}");
        }
    };
    check("", &[(3, "layers.2.mlp.up")]);
    check("--window 0 --workers 2", &[(3, "layers.2.mlp.up")]);
    check("--workers 1", &[(1, "head")]);
    check("--workers 3 --schedule zb-h2", &[(1, "embed.positions"), (2, "head"), (STEPS, "norm")]);
}

#[test]
fn a_nan_is_skipped_with_its_batch() {
    let folder = TextFolder::new();
    let inject = "--inject step=3,tensor=layers.2.mlp.up,value=nan";
    let run = folder.run(inject);
    assert_ne!(run.digest(), folder.run("").digest());
    assert_eq!(rollbacks(&run), expected(&[(3, "skip", "layers.2.mlp.up")]));
    let step = run.step(3);
    assert_eq!((&step["verdict"], &step["attempts"]), (&json!("skip"), &json!(1)));
    assert_eq!((&step["clip"], &step["gnorm"]), (&Value::Null, &Value::Null));
    assert_eq!(verdicts(&run).iter().filter(|verdict| *verdict == "skip").count(), 1);
    for more in ["--workers 1", "--workers 3 --schedule zb-v --window 0"] {
        assert_eq!(folder.run(&format!("{inject} {more}")).digest(), run.digest(), "{more}");
    }
}

#[test]
fn a_gradient_that_stays_bad_is_skipped_after_the_retries() {
    let folder = TextFolder::new();
    let inject = |attempts: u32, retries: u32| {
        let bad = format!("--inject step=5,tensor=norm,value=inf,attempts={attempts}");
        folder.run(&format!("{bad} --set guard.nonfinite=replay --set guard.retries={retries}"))
    };
    let skipped = folder.run("--inject step=5,tensor=norm,value=inf");
    let check = |attempts, retries, runs: usize| {
        let run = inject(attempts, retries);
        let mut bad_steps = vec![(5, "replay", "norm"); runs - 1];
        bad_steps.push((5, "skip", "norm"));
        assert_eq!(rollbacks(&run), expected(&bad_steps));
        assert_eq!(run.step(5)["attempts"], runs);
        assert_eq!(run.step(5)["verdict"], "skip");
        assert_eq!(run.digest(), skipped.digest(), "{attempts} of {retries}");
    };
    check(2, 1, 2);
    check(9, 3, 4);
    let replayed = inject(3, 3);
    assert_eq!(rollbacks(&replayed), expected(&[(5, "replay", "norm"); 3]));
    assert_eq!(replayed.digest(), folder.run("").digest());
}

#[test]
fn a_gradient_that_is_large_and_finite_is_clipped() {
    let folder = TextFolder::new();
    let calm = folder.run("");
    for value in ["value=x1000", "bit=30"] {
        let run = folder.run(&format!("--inject step=4,tensor=layers.1.mlp.up,{value}"));
        assert!(rollbacks(&run).is_empty(), "{value}");
        let step = run.step(4);
        assert_eq!(step["verdict"], "clip", "{value}");
        let [norm, clip] = ["gnorm", "clip"].map(|key| step[key].as_f64().expect("a number"));
        assert!(norm > 20.0 && clip > 0.0 && clip < 0.1, "{step}");
        assert_eq!(run.each("loss")[..4], calm.each("loss")[..4], "the batch is the same");
        assert_ne!(run.digest(), calm.digest(), "{value}");
    }
}

#[test]
fn every_step_is_clipped_under_a_tiny_norm() {
    let folder = TextFolder::new();
    let ahead = folder.run("--set optimizer.clip=0.01 --window 1");
    assert_eq!(verdicts(&ahead), ["clip"; STEPS]);
    assert!(ahead.each("attempts").iter().all(|attempts| *attempts == 1 || *attempts == 2));
    let waiting = folder.run("--set optimizer.clip=0.01 --window 0");
    assert_eq!(verdicts(&waiting), ["clip"; STEPS]);
    assert_eq!(waiting.digest(), ahead.digest());
}

#[test]
fn every_step_is_kept_without_a_clip_norm() {
    let run = TextFolder::new().run("--set optimizer.clip=0");
    assert_eq!(verdicts(&run), ["keep"; STEPS]);
    assert_eq!(run.each("clip"), vec![json!(1.0); STEPS]);
    assert_eq!(run.each("attempts"), vec![json!(1); STEPS]);
}

/// How often each clipped step was attempted.
fn clipped_attempts(folder: &TextFolder, more: &str) -> Vec<u64> {
    let run = folder.run(more);
    let clipped = run.of("step").into_iter().filter(|step| step["verdict"] == "clip");
    clipped.map(|step| step["attempts"].as_u64().expect("a count")).collect()
}

#[test]
fn a_clipped_step_is_taken_again_where_somebody_went_ahead() {
    let folder = TextFolder::new();
    let attempts = clipped_attempts(&folder, "--workers 4 --window 1");
    assert!(attempts.contains(&2) && attempts.iter().all(|count| *count <= 2), "{attempts:?}");
    // With one worker the sums so far are all there are.
    assert_eq!(clipped_attempts(&folder, "--workers 1 --window 1"), vec![1; attempts.len()]);
}

#[test]
fn nobody_goes_ahead_without_a_window() {
    let attempts = clipped_attempts(&TextFolder::new(), "--workers 4 --window 0");
    assert!(!attempts.is_empty() && attempts.iter().all(|count| *count == 1), "{attempts:?}");
}

#[test]
fn a_spike_is_left_out() {
    let folder = TextFolder::new();
    let spike = "--set guard.gnorm_z=6 --inject step=18,tensor=head,value=x1000";
    let run = folder.run(&format!("--steps 20 --set optimizer.clip=0 {spike}"));
    let mut expected = ["keep"; 20];
    expected[17] = "skip";
    assert_eq!(verdicts(&run), expected);
    let found = rollbacks(&run);
    let [[step, verdict, reason]] = &found[..] else { panic!("{found:?}") };
    assert_eq!((step.as_str(), verdict.as_str()), ("18", "skip"));
    assert!(reason.ends_with("deviations above the mean, 6 allowed"), "{reason}");
    assert!(run.step(18)["gnorm"].as_f64() > Some(100.0), "{}", run.step(18));
}
