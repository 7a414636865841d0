//! Slices of sequences, from the command line: their bits depend on how many there are, and on
//! nothing that saves time or memory, with threads and with processes.

use serde_json::{Value, json};

use crate::text_folder::{TextFolder, TrainingOutput, succeed};

const SLICED: &str = "--schedule seq1f1b --slices 4";

fn evaluated(run: &TrainingOutput) -> Vec<Value> {
    run.of("eval").iter().map(|event| event["loss"].clone()).collect()
}

#[test]
fn what_is_made_again_does_not_show_in_the_digest() {
    let folder = TextFolder::new();
    let alone = folder.run(&format!("{SLICED} --workers 1"));
    let choices = [
        "memory.recompute=full",
        "memory.recompute=selective",
        "memory.recompute=selective --set memory.recompute_ops=[\"attention\"]",
    ];
    for (choice, workers) in choices.into_iter().zip([4, 2, 3]) {
        let more = format!("{SLICED} --workers {workers} --set {choice} --set train.eval_every=4");
        let threads = folder.run(&more);
        assert_eq!(threads.digest(), alone.digest(), "{more}");
        assert_eq!(threads.each("loss"), alone.each("loss"), "{more}");
        assert_eq!(threads.json("run.json")["plan"]["schedule"], json!("seq1f1b"));
        let processes = folder.finish(&mut folder.small_in_processes(&more));
        assert_eq!(processes.digest(), alone.digest(), "{more}, in processes");
        assert_eq!(evaluated(&processes), evaluated(&threads), "{more}");
        assert_eq!(evaluated(&threads).len(), 2, "{more}");
    }
}

/// Six slices of 64 tokens have at least two lengths.
#[test]
fn where_sequences_are_cut_shows_in_the_digest_and_who_cuts_them_does_not() {
    let folder = TextFolder::new();
    let sliced = "--set train.seq_len=64 --schedule seq1f1b --set train.eval_every=4";
    let by_time = format!("{sliced} --slices 6 --set schedule.slice_cut=time");
    let alone = folder.run(&format!("{by_time} --workers 1"));
    for more in ["--workers 4", "--workers 3 --set memory.recompute=full --window 0"] {
        let more = format!("{by_time} {more}");
        let threads = folder.run(&more);
        let processes = folder.finish(&mut folder.small_in_processes(&more));
        for run in [&threads, &processes] {
            assert_eq!(run.digest(), alone.digest(), "{more}");
            assert_eq!(evaluated(run), evaluated(&alone), "{more}");
            assert!(run.text("config.toml").contains("slice_cut = \"time\""), "{more}");
        }
    }
    let four = |cut: &str| {
        folder.run(&format!("{sliced} --workers 2 --slices 4 --set schedule.slice_cut={cut}"))
    };
    assert_ne!(four("time").digest(), four("tokens").digest());
}

#[test]
fn a_plan_of_slices_takes_less_the_more_is_made_again() {
    let folder = TextFolder::new();
    // Of all stages: which layers each has follows how fast this machine was found to be, each time anew.
    let total_bytes = |recompute: &str| -> u64 {
        let plan = format!(
            "plan --json --nodes 3 --threads 1 {SLICED} --compare seq1f1b \
             --set model.preset=tiny --set train.seq_len=16 --set memory.recompute={recompute}"
        );
        let forecast: Value =
            serde_json::from_str(&succeed(&mut folder.command(&plan))).expect("JSON");
        let bytes = forecast["schedules"][0]["stage_bytes"].as_array().expect("a number a stage");
        assert_eq!(bytes.len(), 3);
        bytes.iter().map(|bytes| bytes.as_u64().expect("bytes")).sum()
    };
    let [none, selective, full] = ["none", "selective", "full"].map(total_bytes);
    assert!(selective < none, "{selective} of {none}");
    assert!(full < selective, "{full} of {selective}");
}
