//! Slices of sequences, from the command line: their bits depend on how many there are, and on nothing
//! that saves time or memory, with threads and with processes.

use serde_json::{Value, json};

use crate::place::{Place, Run, succeed};

const SLICED: &str = "--schedule seq1f1b --slices 4";

#[test]
fn what_is_made_again_does_not_show_in_the_digest() {
    let place = Place::new();
    let alone = place.run(&format!("{SLICED} --workers 1"));
    let choices = [
        "memory.recompute=full",
        "memory.recompute=selective",
        "memory.recompute=selective --set memory.recompute_ops=[\"attention\"]",
    ];
    for (choice, workers) in choices.into_iter().zip([4, 2, 3]) {
        let more = format!("{SLICED} --workers {workers} --set {choice} --set train.eval_every=4");
        let threads = place.run(&more);
        assert_eq!(threads.digest(), alone.digest(), "{more}");
        assert_eq!(threads.each("loss"), alone.each("loss"), "{more}");
        assert_eq!(threads.json("run.json")["plan"]["schedule"], json!("seq1f1b"));
        let processes = place.finish(&mut place.small_in_processes(&more));
        assert_eq!(processes.digest(), alone.digest(), "{more}, in processes");
        let evaluated = |run: &Run| {
            run.of("eval").iter().map(|event| event["loss"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(evaluated(&processes), evaluated(&threads), "{more}");
        assert_eq!(evaluated(&threads).len(), 2, "{more}");
    }
}

#[test]
fn a_plan_of_slices_takes_less_the_more_is_made_again() {
    let place = Place::new();
    let stage_bytes = |recompute: &str| -> Vec<u64> {
        let plan = format!(
            "plan --json --nodes 3 --threads 1 {SLICED} --compare seq1f1b \
             --set model.preset=tiny --set train.seq_len=16 --set memory.recompute={recompute}"
        );
        let told: Value = serde_json::from_str(&succeed(&mut place.command(&plan))).expect("JSON");
        let bytes = told["schedules"][0]["stage_bytes"].as_array().expect("a number a stage");
        bytes.iter().map(|bytes| bytes.as_u64().expect("bytes")).collect()
    };
    let [none, selective, full] = ["none", "selective", "full"].map(stage_bytes);
    for stage in 0..3 {
        assert!(selective[stage] < none[stage], "{selective:?} of {none:?}");
        assert!(full[stage] < selective[stage], "{full:?} of {selective:?}");
    }
}
