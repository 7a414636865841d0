//! Runs over token stores: `data prepare`, then `train`, in threads and in processes.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{refusal, text};
use crate::text_folder::{TextFolder, TrainingOutput, succeed};

/// Ids of the tokenizer that [`prepared`] trains.
const VOCABULARY: u32 = 320;
/// A learning rate that does not depend on the number of steps.
const STEADY: &str = "--set optimizer.decay=constant --set optimizer.warmup=0";

/// A text folder with a tokenizer `tok`, and a store `store` of its text in several shards.
fn prepared() -> TextFolder {
    let folder = TextFolder::new();
    let line = |n: u32| format!("{{\"text\": \"{n} and {n} are {}\"}}\n", n + n);
    folder.write("lines.jsonl", (1..=9000).map(line).collect::<String>());
    let train = format!("tokenizer train --vocab {VOCABULARY} --to tok --text text.txt");
    silently(&mut folder.command(&train));
    let prepare = "data prepare lines.jsonl --tokenizer tok --to store --shard-tokens 1000";
    silently(&mut folder.command(prepare));
    folder
}

/// A command that succeeds; what it prints is tested elsewhere.
fn silently(command: &mut Command) {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
}

/// The small model over these stores, which may be of bytes.
fn over(stores: &str, more: &str) -> String {
    format!("--set data.text=[] --set data.tokens=[{stores}] {more}")
}

/// The small model over these stores of the tokenizer in `tok`.
fn over_tokens(stores: &str, more: &str) -> String {
    over(stores, &format!("--set data.tokenizer=tok {more}"))
}

/// The number of a process that works with `name` of a run's cluster.
fn process_of(folder: &TextFolder, name: &str) -> String {
    let lock = folder.path("runs/tiny-1/cluster").join(name).join("LOCK");
    fs::read_to_string(&lock).expect("its number").trim().to_owned()
}

#[test]
fn a_store_gives_the_same_bits_to_threads_and_to_processes_that_are_killed() {
    let folder = prepared();
    let shards = fs::read_dir(folder.path("store")).expect("readable").count();
    assert!(shards > 3, "{shards}");
    let more = over_tokens("\"store\"", &format!("--steps 150 {STEADY}"));
    let mut processes = folder.small_in_processes(&format!("{more} --workers 3 --json"));
    let mut child = processes.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut printed = String::new();
    for (step, name) in [(20, "worker-1"), (60, "worker-2"), (90, "worker-3")] {
        while !printed.contains(&format!("\"step\":{step},")) {
            let read = std::io::BufRead::read_line(&mut stdout, &mut printed).expect("UTF-8");
            assert!(read > 0, "{printed}");
        }
        let status = Command::new("kill").args(["-9", &process_of(&folder, name)]).status();
        assert!(status.expect("there is a kill").success());
    }
    std::io::Read::read_to_string(&mut stdout, &mut printed).expect("UTF-8");
    assert!(child.wait().expect("it ends").success(), "{printed}");
    let killed = TrainingOutput::read(&folder, printed);
    let threads = folder.run(&format!("{more} --workers 2"));
    assert_eq!(killed.digest(), threads.digest());
    let fields = |run: &TrainingOutput| run.json("run.json")["tokens"].clone();
    assert_eq!(fields(&killed), fields(&threads));
    assert!(fields(&threads)["stores"][0]["epochs"].as_f64().is_some_and(|epochs| epochs > 0.0));
    for run in [&killed, &threads] {
        assert_eq!(
            run.file("model/tokenizer.json"),
            fs::read(folder.path("tok/tokenizer.json")).expect("trained")
        );
        let config: Value = run.json("model/config.json");
        assert_eq!(config["vocab_size"], VOCABULARY, "the store's");
    }
    let other = folder.run(&over_tokens("\"store\"", &format!("--steps 150 {STEADY} --seed 2")));
    assert_ne!(other.digest(), threads.digest());
}

/// What is in its stores counts when a run goes on, and not where they lie.
#[test]
fn a_branch_goes_on_over_stores_that_were_moved() {
    let folder = prepared();
    let run = |stores: &str, more: &str| {
        over_tokens(stores, &format!("{STEADY} --workers 2 --out run {more}"))
    };
    folder.finish(&mut folder.small_in_processes(&run("\"store\"", "--steps 10")));
    fs::rename(folder.path("store"), folder.path("moved")).expect("a folder");
    let moved = run("\"moved\"", "--steps 20 --branch");
    let branch = folder.finish(&mut folder.small_in_processes(&moved));
    assert_eq!(branch.step(1)["step"], 11);
    let whole = folder.run(&over_tokens("\"moved\"", &format!("--steps 20 {STEADY}")));
    assert_eq!(branch.digest(), whole.digest());
}

/// A store of bytes is a text: the order of windows is the same, and so is every bit.
#[test]
fn a_store_of_bytes_trains_to_the_bits_of_its_text() {
    let folder = TextFolder::new();
    silently(&mut folder.command("data prepare text.txt --to bytes"));
    let of_store = folder.run(&over("\"bytes\"", ""));
    let of_text = folder.run("");
    assert_eq!(of_store.digest(), of_text.digest());
    assert_eq!(of_store.text("sample.txt"), of_text.text("sample.txt"));
    let mut command = folder.small(&over("\"bytes\"", ""));
    let printed = succeed(&mut command);
    assert!(printed.contains("tokens  "), "{printed}");
    assert!(printed.contains(" tokens in 1 document of bytes ("), "{printed}");
    assert!(printed.contains("nats a token over the last steps"), "{printed}");
}

#[test]
fn a_mixture_is_drawn_by_its_weights() {
    let folder = prepared();
    silently(&mut folder.command("data prepare text.txt --tokenizer tok --to other"));
    let run = |stores: &str| folder.run(&over_tokens(stores, "--workers 2"));
    let both = run("\"store\",\"other\"");
    assert_eq!(both.digest(), run("\"store=2\",\"other=2\"").digest(), "in lowest terms");
    assert_ne!(both.digest(), run("\"store=3\",\"other\"").digest());
    let stores = both.json("run.json")["tokens"]["stores"].clone();
    assert_eq!(stores.as_array().map(Vec::len), Some(2));
    let processes = folder
        .finish(&mut folder.small_in_processes(&over_tokens("\"store\",\"other\"", "--workers 2")));
    assert_eq!(processes.digest(), both.digest());
}

#[test]
fn what_cannot_be_trained_on_is_refused_with_what_to_do() {
    let folder = prepared();
    let check = |more: &str, code: i32, parts: &[&str]| {
        let message = refusal(&mut folder.small(more), code);
        for part in parts {
            assert!(message.contains(part), "{more}: no {part:?} in:\n{message}");
        }
    };
    check("--set data.tokens=[\"store\"]", 2, &["stands beside data.text", "try: leave out"]);
    check(&over("\"nowhere\"", ""), 2, &["nowhere/manifest.json", "`zbelastic data prepare`"]);
    check(&over("\"store=0\"", ""), 2, &["0 is no weight"]);
    let small = over("\"store\"", "--set model.vocab=256");
    check(&small, 2, &["vocabulary of 320, the model of 256", "try: model.vocab = 320 or more"]);
    silently(&mut folder.command("data prepare text.txt --to bytes"));
    check(&over("\"store\",\"bytes\"", ""), 2, &["was made with tokenizer", "one tokenizer"]);
    silently(&mut folder.command("tokenizer train --vocab 330 --to other --text text.txt"));
    let other = over("\"store\"", "--set data.tokenizer=other");
    check(&other, 2, &["data.tokenizer: has hash", "the stores were made with"]);
    let shard = folder.path("store/00001.shard");
    let whole = fs::read(&shard).expect("readable");
    let mut flipped = whole.clone();
    flipped[2] ^= 1;
    fs::write(&shard, &flipped).expect("writable");
    check(&over("\"store\"", ""), 8, &["store/00001.shard: has hash", "`zbelastic data prepare`"]);
    fs::write(&shard, &whole[1..]).expect("writable");
    check(&over("\"store\"", ""), 8, &["store/00001.shard: has ", "bytes, expected"]);
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

/// A shard that is cut short while it is read ends the run, which names it.
#[test]
fn a_shard_that_is_truncated_under_a_run_ends_it() {
    let folder = prepared();
    let more = over_tokens("\"store\"", &format!("--steps 100000 {STEADY} --workers 2 --json"));
    let mut command = folder.small(&more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("a step");
    for entry in fs::read_dir(folder.path("store")).expect("readable").flatten() {
        if entry.path().extension().is_some_and(|found| found == "shard") {
            let shard = fs::OpenOptions::new().write(true).open(entry.path()).expect("writable");
            shard.set_len(10).expect("writable");
        }
    }
    let drained = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let output = child.wait_with_output().expect("it ends");
    let _ = drained.join();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{stderr}");
    assert!(stderr.contains(".shard: has 10 bytes, expected"), "{stderr}");
    assert!(stderr.contains("none of them is affected"), "{stderr}");
}

/// Text with a tokenizer becomes a store in the run folder, once.
#[test]
fn text_and_a_tokenizer_make_a_store_behind_the_scenes() {
    let folder = prepared();
    let first = folder.run("--set data.tokenizer=tok --out one");
    let stores: Vec<_> = fs::read_dir(folder.path("one/tokens")).expect("made").flatten().collect();
    assert_eq!(stores.len(), 1);
    let config = first.text("config.toml");
    assert!(config.contains("tokens = [\"one/tokens/"), "{config}");
    assert_eq!(first.json("model/config.json")["vocab_size"], VOCABULARY);
    silently(&mut folder.command("data prepare text.txt --tokenizer tok --to same"));
    let prepared = folder.run(&over_tokens("\"same\"", ""));
    assert_eq!(first.digest(), prepared.digest());
    let few = "--set data.tokenizer=tok --set model.vocab=300";
    let message = refusal(&mut folder.small(few), 2);
    assert!(message.contains("has 320 tokens, the model knows 300"), "{message}");
    let message = refusal(&mut folder.small("--set data.text=[] --set data.tokenizer=tok"), 2);
    assert!(message.contains("--text with files"), "{message}");
}

/// Encoding may take hours: what needs no store is refused before.
#[test]
fn a_store_is_made_after_everything_else_was_checked() {
    let folder = prepared();
    let tokenized = "--set data.tokenizer=tok --out one";
    let check = |more: &str, code: i32, part: &str| {
        let message = refusal(&mut folder.small(&format!("{tokenized} {more}")), code);
        assert!(message.contains(part), "{more}: {message}");
        assert!(!folder.path("one/tokens").exists(), "{more}: nothing was encoded");
    };
    check("--inject step=2,tensor=nowhere,value=nan", 2, "nowhere");
    check("--workers 5", 2, "5 workers for a model of 4 layers");
    let _ = folder.run("--out one");
    check("", 6, "one holds a run already");
    let mut command = folder.command("config check --set model.preset=tiny --json");
    let command = command.args(["--text", "lines.jsonl", "--set", "data.tokenizer=tok"]);
    let checked: Value = serde_json::from_str(&succeed(command)).expect("JSON");
    let bytes = fs::metadata(folder.path("lines.jsonl")).expect("written").len();
    assert_eq!(
        checked["text"],
        serde_json::json!({"bytes": bytes, "files": 1, "tokenizer": "tok"})
    );
}

/// As docs/run-folder.md says of a run, and the same command goes on.
#[test]
fn a_signal_that_ends_encoding_has_the_code_of_an_interrupted_run() {
    let folder = prepared();
    let line = "{\"text\": \"a line of a corpus, which is not short\"}\n";
    folder.write("lines.jsonl", line.repeat(300_000));
    let more = "--set data.text=lines.jsonl --set data.tokenizer=tok --out one";
    check_ends_encoding((&folder, folder.small(more), "one/tokens"), "-TERM", 75);
    let run = "run --set model.preset=tiny --text lines.jsonl --tokenizer tok";
    check_ends_encoding((&folder, folder.command(run), "runs/tokens"), "-INT", 130);
}

/// A signal to a command that makes a store below `tokens`.
fn check_ends_encoding(
    (folder, mut command, tokens): (&TextFolder, Command, &str),
    signal: &str,
    code: i32,
) {
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it runs");
    while !folder.path(tokens).exists() {
        std::thread::yield_now();
    }
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("there is a kill").success());
    let output = child.wait_with_output().expect("it ends");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(&format!("error: interrupted\n  {tokens}/")), "{message}");
    assert!(message.contains("the same command goes on"), "{message}");
    // One whose first shard is not finished is left out.
    for store in fs::read_dir(folder.path(tokens)).expect("readable") {
        let store = store.expect("readable").path();
        assert!(!store.join("manifest.json").exists(), "{message}");
    }
}
