//! Command lines, and what they mean.

use clap::{CommandFactory, Parser};
use zbelastic_bench::args::{BenchCommand, BenchConfig};
use zbelastic_config::{ConfigFlag, ConfigValue, Key};
use zbelastic_machine::DeviceSelector;
use zbelastic_types::Bytes;

use super::{Cli, CliCommand, RoleArg};

fn parse(line: &str) -> CliCommand {
    Cli::try_parse_from(line.split_whitespace()).expect("legal").command
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn flags_of_their_own_come_after_set() {
    let line = "zbelastic train run.toml --steps 5 --set train.steps=7 --text a b --window 0";
    let CliCommand::Train(args) = parse(line) else { panic!("train") };
    let sources = args.config.sources();
    let own = |flag, key, value| ConfigFlag::Own { flag, key, value };
    let text = |text: &str| ConfigValue::Text(text.to_owned());
    let expected = [
        ConfigFlag::Set("train.steps=7".to_owned()),
        own("--steps", Key::Steps, ConfigValue::Whole(5)),
        own("--window", Key::Window, ConfigValue::Whole(0)),
        own("--text", Key::Text, ConfigValue::List(vec![text("a"), text("b")])),
    ];
    assert_eq!(sources.flags, expected);
    assert_eq!(sources.file, Some("run.toml".into()));
}

#[test]
fn benchmarks_are_all_or_those_named() {
    let configs = |line: &str| {
        let CliCommand::Bench(BenchCommand::Train(args) | BenchCommand::Gemm(args)) = parse(line)
        else {
            panic!("bench of several models")
        };
        args.configs().to_vec()
    };
    let all = [BenchConfig::A, BenchConfig::B, BenchConfig::C];
    assert_eq!(configs("zbelastic bench train"), all);
    assert_eq!(configs("zbelastic bench gemm --config c,A"), [BenchConfig::C, BenchConfig::A]);
}

/// What is said about a line that is refused.
fn refused(line: &[&str]) -> String {
    let error = Cli::of_words(["zbelastic"].iter().chain(line)).expect_err("refused");
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn init_and_join_take_what_they_need() {
    let CliCommand::Init(args) = parse("zbelastic init --name wiki --advertise 10.0.0.1") else {
        panic!("init")
    };
    assert_eq!(args.name.as_deref(), Some("wiki"));
    assert_eq!(args.advertise.expect("typed").to_string(), "10.0.0.1:7000");
    assert_eq!((args.bind, args.folder.data_dir), (None, None));
    let line = "zbelastic join --cluster a,b:1 --token-file t --role controller --name ctl-2 \
                --bind :0 --data-dir d --threads 4 --memory 8GiB --data-path x.txt y.txt \
                --data-cache 20GiB";
    let CliCommand::Join(args) = parse(line) else { panic!("join") };
    assert_eq!(args.cluster.expect("typed").to_string(), "a:7000,b:1");
    assert_eq!(args.token.token_file, Some("t".into()));
    assert_eq!((args.role, args.device), (Some(RoleArg::Controller), DeviceSelector::Cpu));
    assert_eq!(args.bind.expect("typed").to_string(), "0.0.0.0:0");
    assert_eq!((args.threads, args.memory), (Some(4), Some(Bytes(8 << 30))));
    assert_eq!(args.data_path, ["x.txt", "y.txt"]);
    assert_eq!(args.data_cache, Some(Bytes(20 << 30)));
    let CliCommand::Join(args) = parse("zbelastic join") else { panic!("join") };
    assert_eq!((args.role, args.cluster), (None, None));
}

#[test]
fn wrong_flags_are_explained() {
    let check = |line: &[&str], expected: &str| {
        let message = refused(line);
        assert!(message.contains(expected), "{message}");
    };
    check(&["join", "--cluster", "a:70000"], "`70000` is no port");
    check(&["join", "--cluster", "::"], "every interface of this machine");
    check(&["join", "--cluster", ""], "there is no address");
    check(&["join", "--cluster", "a,a"], "a:7000 is in the list twice");
    check(&["join", "--device", "cuda:x"], "\"x\" is no number of a device");
    check(&["join", "--device", "cuda:0,cuda:1"], "\"0,cuda:1\" is no number of a device");
    check(&["join", "--device", "rocm:0"], "processors and NVIDIA devices");
    check(&["train", "--device", "cuda:0,cpu"], "cpu stands alone");
    check(&["train", "--device", "gpu0"], "expected cpu or cuda:N, as in cuda:0");
    check(&["join", "--memory", "8GB"], "units are of 1024, GiB instead of GB");
    check(&["join", "--name", "7"], "would be read as a node's number");
    check(&["join", "--role", "viewer"], "[possible values: worker, controller]");
    check(&["join", "--token", "a", "--token-file", "b"], "cannot be used with");
    check(&["join", "--threads", "0"], "0 is not in 1..=64");
    check(&["init", "--advertise", "0.0.0.0"], "every interface of this machine");
    check(&["init", "--bind", "localhost"], "no address of an interface");
    check(&["token", "create", "--ttl", "24"], "24 of what?");
    check(&["token", "create", "--ttl", "0s"], "more than no time at all");
    check(&["token", "create", "--uses", "0"], "0 is not in 1..=65536");
    check(&["token", "revoke", ""], "expected a name or a number");
    check(&["node", "show"], "<NODE>");
    check(&["ckpt", "show", "newest"], "'newest' for '<STEP>': expected a whole number");
    check(&["train", "--workers", "many"], "'many' for '--workers <N>': expected a whole number");
    check(&["ckpt", "show", "99999999999999999999"], "no such number is taken here");
    check(&["export", "baseline"], "--to <DIR>");
    check(&["export", "a", "--to", "b", "--dtype", "int8"], "[possible values: f32, bf16, f16]");
    check(&["export", "a", "--to", "b", "--shard", "0"], "expected a size such as 5GB");
    check(&["generate", "a"], "--prompt <TEXT>");
    check(&["generate", "a", "--prompt", "b", "--top-k", "0"], "0 is not in 1..");
    check(&["eval", "a"], "--text <PATH>...|--tokens <STORE>");
    check(&["eval", "a", "--text", "b", "--tokens", "c"], "cannot be used with");
    check(&["cluster", "recover", "--yes"], "--force-new-cluster");
    check(&["status", "--interval", "soon"], "expected a duration");
}

#[test]
fn what_reads_has_json_and_what_destroys_has_yes() {
    let reads = [
        "token create",
        "token list",
        "node list",
        "node show 1",
        "run",
        "status",
        "events",
        "logs",
        "ckpt list",
        "ckpt show 1",
        "ckpt verify",
        "ckpt gc",
        "cluster info",
    ];
    reads.iter().for_each(|line| drop(parse(&format!("zbelastic {line} --json"))));
    let destroys = [
        "token revoke a",
        "node remove 1",
        "stop",
        "ckpt restore 1",
        "ckpt gc",
        "cluster recover --force-new-cluster",
    ];
    destroys.iter().for_each(|line| drop(parse(&format!("zbelastic {line} --yes"))));
    let requests =
        ["pause", "resume", "node drain 1", "cluster backup f", "export d --to e --step 3"];
    let requests = requests.iter().chain(&reads).chain(&destroys[..5]);
    requests.for_each(|line| drop(parse(&format!("zbelastic {line} --cluster a --data-dir d"))));
}

#[test]
fn run_is_configured_as_train_is() {
    let line = "zbelastic run run.toml --set train.steps=7 --seed 3 --text a b --detach";
    let CliCommand::Run(args) = parse(line) else { panic!("run") };
    assert!(args.detach && !args.read.json);
    let sources = args.config.sources();
    assert_eq!((sources.flags.len(), sources.file), (3, Some("run.toml".into())));
}
