//! Limits of memory that are met by computing again and by letting leave, from the command line.

use serde_json::{Value, json};

use crate::common::refusal;
use crate::text_folder::{TextFolder, TrainingOutput};

const PIPELINE: &str = "--schedule 1f1b --workers 3 --set elastic.copies=0";
/// Less than what one microbatch keeps on the first stage, which has three of them.
const TOO_MUCH: u64 = 40_000;

fn stage_bytes(run: &TrainingOutput) -> Vec<u64> {
    let plan = &run.json("run.json")["plan"];
    assert_eq!(plan["schedule"], json!("1f1b"));
    let bytes = plan["stage_bytes"].as_array().expect("a number a stage");
    bytes.iter().map(|bytes| bytes.as_u64().expect("bytes")).collect()
}

#[test]
fn a_limit_that_is_met_by_doing_more_does_not_show_in_the_digest() {
    let folder = TextFolder::new();
    let free = folder.run(PIPELINE);
    let largest = *stage_bytes(&free).iter().max().expect("three stages");
    let limit = largest - TOO_MUCH;
    let limited = format!("{PIPELINE} --set schedule.max_mem={limit}");
    let stderr = refusal(&mut folder.small(&limited), 7);
    assert!(stderr.contains("memory.recompute_passes=needed"), "{stderr}");
    let again = "--set memory.recompute=full --set memory.recompute_passes=needed";
    let away = "--set memory.offload=needed --set memory.offload_store=file";
    for policy in [again, away, &format!("{again} {away}")] {
        let more = format!("{limited} {policy}");
        let threads = folder.run(&more);
        let processes = folder.finish(&mut folder.small_in_processes(&more));
        for run in [&threads, &processes] {
            assert_eq!(run.digest(), free.digest(), "{more}");
        }
        let sizes = stage_bytes(&threads);
        assert!(sizes.iter().all(|size| *size <= limit), "{more}: {sizes:?}");
        assert_eq!(sizes[1..], stage_bytes(&free)[1..], "those have room: {more}");
    }
}

#[test]
fn without_a_limit_nothing_is_done() {
    let folder = TextFolder::new();
    let bytes = |policy: &str| -> Value {
        folder.run(&format!("{PIPELINE} {policy}")).json("run.json")["plan"]["stage_bytes"].clone()
    };
    let policy = "--set memory.recompute=selective --set memory.recompute_passes=needed \
                  --set memory.offload=needed";
    assert_eq!(bytes(policy), bytes(""));
    assert_ne!(bytes("--set memory.recompute=full"), bytes(""));
}
