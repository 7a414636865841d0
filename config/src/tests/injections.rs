//! Injections beside a configuration.

use super::set;
use crate::{ConfigSources, check_injections, load, load_with_injections, parse_injections};

fn injections(specs: &[&str]) -> Vec<String> {
    specs.iter().map(|spec| (*spec).to_owned()).collect()
}

#[test]
fn injections_are_read_with_the_configuration() {
    let sources = ConfigSources { file: None, flags: vec![set("train.steps=300")] };
    let specs =
        injections(&["step=7,tensor=layers.2.mlp.up,value=nan", "step=300,tensor=head,bit=3"]);
    let (loaded, read) = load_with_injections(&sources, &specs).expect("legal");
    assert_eq!((loaded.config.steps, read.len()), (300, 2));
}

#[test]
fn injections_that_cannot_be_are_refused() {
    let check = |specs: &[&str], expected: &str| {
        let sources = ConfigSources { file: None, flags: vec![set("train.steps=300")] };
        let failure = load_with_injections(&sources, &injections(specs));
        assert_eq!(failure.expect_err("wrong").to_string(), expected);
    };
    check(
        &["step=0,tensor=head,value=nan", "stepp=1,tensor=head,value=nan", "step=1"],
        "error: --inject has 3 errors
  --inject step=0,tensor=head,value=nan: `0` is no step; expected a whole number from 1
  try: --inject step=7,tensor=layers.2.mlp.up,value=nan
  --inject stepp=1,tensor=head,value=nan: `stepp` is unknown or stands twice; expected each of \
         step, tensor, value, and attempts if wanted
  try: step
  --inject step=1: tensor is missing; write step=N,tensor=NAME,value=nan
  try: --inject step=7,tensor=layers.2.mlp.up,value=nan",
    );
    check(
        &["step=301,tensor=layers.2.mlp.upp,value=nan"],
        "error: --inject has 2 errors
  --inject: step 301 is beyond the 300 steps of the run
  why: what never runs cannot be corrupted
  try: step=1 to step=300, or --steps 301
  --inject: the model has no tensor `layers.2.mlp.upp`
  why: the family and the number of layers decide which tensors there are
  try: layers.2.mlp.up",
    );
    let config = load(&ConfigSources::default()).expect("legal").config;
    let other = parse_injections(&injections(&["step=1,tensor=weights,value=inf"])).expect("legal");
    let hint = check_injections(&config, &other)[0].hint.clone();
    let expected = "one of embed.tokens, layers.0.norm1, layers.0.attn.q, layers.0.attn.k, \
                    layers.0.attn.v, layers.0.attn.out, layers.0.norm2, layers.0.mlp.gate, \
                    layers.0.mlp.up, layers.0.mlp.down, norm, head";
    assert_eq!(hint.as_deref(), Some(expected));
}

#[test]
fn errors_of_the_configuration_and_of_injections_are_reported_together() {
    let sources = ConfigSources { file: None, flags: vec![set("train.steps=0")] };
    let failure = load_with_injections(&sources, &injections(&["step"])).expect_err("wrong");
    assert_eq!(failure.what, "the configuration has 2 errors");
}
