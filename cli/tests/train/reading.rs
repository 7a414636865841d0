//! The output of a run for a person.

use crate::common::text;
use crate::text_folder::{TextFolder, TrainingOutput, succeed};

/// A line with `#` for each number in it.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut is_number = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let goes_on = letters.peek().is_some_and(|next| next.is_ascii_digit() || *next == '-');
        is_number = match letter {
            '0'..='9' => true,
            '.' | ',' | 'e' | '-' => is_number && goes_on,
            _ => false,
        };
        if !is_number {
            shape.push(letter);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

/// A run that a person watched, and its metrics.
fn watched(folder: &TextFolder, more: &str) -> (Vec<String>, TrainingOutput) {
    let lines = succeed(&mut folder.small(&format!("{more} --out watched")));
    let metrics = std::fs::read(folder.path("watched/metrics.jsonl")).expect("kept");
    (lines.lines().map(str::to_owned).collect(), TrainingOutput::read(folder, text(&metrics)))
}

#[test]
fn the_heading_says_what_is_trained_on_what_and_how() {
    let folder = TextFolder::new();
    let (lines, _) = watched(&folder, "--workers 3 --threads 2 --schedule zb-h1");
    let heading: Vec<&str> =
        lines.iter().take_while(|line| !line.is_empty()).map(String::as_str).collect();
    let [model, text, batch, plan, workers, memory, cpu, time, files] = heading[..] else {
        panic!("{heading:?}")
    };
    assert_eq!(model, "model   gpt2, 4 layers of width 32, 67,776 parameters");
    let size = std::fs::metadata(folder.path("text.txt")).expect("a file").len();
    assert!(text.starts_with(&format!("text    {size} bytes in 1 file; ")), "{text}");
    assert_eq!(shape(text), "text    # bytes in # file; # windows of #, # held out");
    assert_eq!(batch, "batch   8 windows = 8 microbatches of 1");
    assert!(plan.starts_with("plan    zb-h1: planned bubble "), "{plan}");
    assert!(workers.starts_with("workers 3, each with 2 threads, on "), "{workers}");
    assert!(memory.starts_with("memory  "), "{memory}");
    assert!(memory.contains(" in stage ") && memory.ends_with(", the fullest"), "{memory}");
    assert!(cpu.starts_with("cpu     ") && cpu.contains(" kernels"), "{cpu}");
    assert!(cpu.ends_with(" GFLOP/s"), "{cpu}");
    assert!(time.starts_with("time    at best ") && time.contains(" for 8 steps"), "{time}");
    assert_eq!(files, "files   watched");
}

#[test]
fn the_heading_names_what_may_not_be_meant() {
    let folder = TextFolder::new();
    std::fs::create_dir(folder.path("texts")).expect("a folder");
    folder.write("texts/a.txt", "a line of text\n".repeat(60));
    folder.write("texts/b.bin", [0xff; 20]);
    let (lines, _) = watched(&folder, "--text texts --set optimizer.warmup=9 --steps 1");
    let notes: Vec<&String> = lines.iter().filter(|line| line.starts_with("note: ")).collect();
    assert_eq!(notes.len(), 2, "{lines:#?}");
    assert!(notes[0].starts_with("note: optimizer.warmup = 9 is more than train.steps = 1"));
    assert_eq!(notes[1], "note: texts/b.bin is not UTF-8 and is left out");
}

#[test]
fn the_text_that_is_built_in_is_named() {
    let folder = TextFolder::new();
    let more = "--set data.text=[] --steps 1 --set optimizer.warmup=0";
    let (lines, _) = watched(&folder, more);
    let start = "text    built in: the project's own documentation, ";
    assert!(lines[1].starts_with(start), "{}", lines[1]);
}

#[test]
fn every_step_is_a_line() {
    let folder = TextFolder::new();
    let more = "--steps 10 --workers 3 --set model.width=64 --set schedule.max_mem=16MiB";
    let (lines, run) = watched(&folder, more);
    let step_lines: Vec<&String> = lines.iter().filter(|line| line.starts_with("step ")).collect();
    assert_eq!(step_lines.len(), 10);
    for (line, step) in step_lines.iter().zip(run.of("step")) {
        let number = |key: &str| step[key].as_f64().expect("a number");
        let clip = if step["verdict"] == "clip" { "  clip" } else { "" };
        let expected =
            format!("step #/#  loss #  norm #  # ms  #k tok/s  mfu #%  bubble #%  eta #s{clip}");
        let found = shape(line).replace("step  #", "step #").replace("  # tok/s", "  #k tok/s");
        assert_eq!(found, expected, "{line}");
        let start = format!("step {:>2}/10  loss {:.4}  ", number("step"), number("loss"));
        assert!(line.starts_with(&start), "{line}, expected {start}");
        let bubble = 100.0 * number("bubble_measured");
        let digits = usize::from(bubble < 9.95);
        let bubble = format!("  bubble {bubble:.digits$}%  ");
        assert!(line.contains(&bubble), "{line}, expected {bubble}");
    }
    assert!(step_lines[9].contains("  eta 0s"), "{}", step_lines[9]);
}

#[test]
fn the_end_says_what_came_of_it() {
    let folder = TextFolder::new();
    let (lines, run) = watched(&folder, "--steps 6");
    let end = lines.iter().position(|line| line.starts_with("✔ 6 steps in ")).expect("an end");
    let mut lines = lines;
    let is_explained = lines[end + 2].starts_with("time ");
    assert_eq!(is_explained, !run.json("run.json")["causes"].is_null(), "{lines:#?}");
    if is_explained {
        let expected = "time    # ms a step: # as planned, # computation, # messages, # verdicts, \
                        # rest, # between steps";
        assert_eq!(shape(&lines.remove(end + 2)).replace(['+', '-'], ""), expected);
    }
    let [before, steps, loss, digest, files, sample, after] = &lines[end - 1..end + 6] else {
        panic!()
    };
    assert_eq!((before.as_str(), after.as_str()), ("", ""));
    assert_eq!(sample, "sample  drawn at temperature 0.7:");
    assert_eq!(shape(steps), "✔ # steps in #s, # tok/s");
    let held_out = run.done()["held_out_loss"].as_f64().expect("a number");
    let text = std::fs::read(folder.path("text.txt")).expect("a file");
    let count = |byte: u8| text.iter().filter(|found| **found == byte).count();
    let shares = (0..=u8::MAX).map(|byte| count(byte) as f64 / text.len() as f64);
    let entropy: f64 = shares.filter(|share| *share > 0.0).map(|share| -share * share.ln()).sum();
    let final_loss = run.json("run.json")["final_loss"].as_f64().expect("a number");
    let expected = format!(
        "loss    {final_loss:.3} nats a byte over the last steps, {held_out:.3} on held-out text; \
         single bytes have an entropy of {entropy:.3}"
    );
    assert_eq!(*loss, expected);
    assert_eq!(*digest, format!("digest  {}", run.digest()));
    assert_eq!(files, "files   watched");
    let sample = lines[end + 6..].join("\n");
    assert_eq!(sample.trim_end(), run.text("sample.txt").trim_end());
    assert!(!sample.contains(|letter: char| letter.is_control() && !"\n\t".contains(letter)));
}

#[test]
fn rollbacks_and_evaluations_have_lines_of_their_own() {
    let folder = TextFolder::new();
    let more = "--set guard.nonfinite=replay --set train.eval_every=4 \
        --inject step=3,tensor=layers.2.mlp.up,value=nan \
        --inject step=5,tensor=head,value=inf,attempts=2";
    let (lines, run) = watched(&folder, more);
    let marked = lines.iter().filter(|line| line.starts_with(['▲', '✔']));
    let marked: Vec<&str> = marked.map(String::as_str).collect();
    let loss = |index: usize| run.of("eval")[index]["held_out_loss"].as_f64().expect("a number");
    let bad = |tensor: &str| format!("non-finite gradient in {tensor} (1 value)");
    let expected = [
        format!("▲ step 3 rolled back: {}; it runs again", bad("layers.2.mlp.up")),
        format!("✔ held-out loss {:.4} after step 4", loss(0)),
        format!("▲ step 5 rolled back: {}; it runs again", bad("head")),
        format!("▲ step 5 skipped: {}; its batch is left out", bad("head")),
        format!("✔ held-out loss {:.4} after step 8", loss(1)),
    ];
    assert_eq!(marked[..5], expected);
    assert!(marked[5].starts_with("✔ 8 steps in "), "{}", marked[5]);
    let skipped = lines.iter().find(|line| line.starts_with("step 5/8  ")).expect("a line");
    assert!(skipped.ends_with("  skip"), "{skipped}");
}
