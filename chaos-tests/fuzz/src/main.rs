//! libfuzzer's loop around one target, which `ZBELASTIC_FUZZ_TARGET` names. Its seeds are first
//! written to the folder `ZBELASTIC_FUZZ_SEEDS`. `chaos-tests/fuzz/run` starts it for each target.
#![no_main]

use std::sync::LazyLock;
use std::{env, fs};

use zbelastic_fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("ZBELASTIC_FUZZ_TARGET").unwrap_or_default();
    let found = Target::ALL.into_iter().find(|target| target.name() == name);
    let names = || Target::ALL.map(Target::name).join(" ");
    found
        .unwrap_or_else(|| panic!("ZBELASTIC_FUZZ_TARGET is `{name}`, expected one of {}", names()))
});

fn write_seeds() {
    let Some(folder) = env::var_os("ZBELASTIC_FUZZ_SEEDS") else { return };
    for (number, bytes) in TARGET.seeds().iter().enumerate() {
        let path = std::path::Path::new(&folder).join(format!("seed-{number}"));
        fs::write(path, bytes).expect("the folder of seeds can be written");
    }
}

libfuzzer_sys::fuzz_target!(init: write_seeds(), |bytes: &[u8]| {
    TARGET.check(bytes);
});
