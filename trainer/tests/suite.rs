//! Tests of whole pipelines: one program, since each of them compiles the engine with its kernels anew.

mod common;

mod arriving;
mod asynchronous;
mod choose;
mod columns;
mod decay;
mod documents;
mod drift;
mod equivalence;
mod evaluation;
mod features;
mod freezing;
mod image;
mod islands;
mod lanes;
mod less_memory;
mod lora;
mod muon;
mod replicas;
mod runtime;
mod sampling;
mod slices;
mod solved;
mod standby;
mod tied;
mod timed_layers;
mod written_weights;
mod z_loss;

/// A file that is not listed above would not be compiled, and its tests would be gone.
#[test]
fn every_file_of_the_folder_is_a_module() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let files = paths.filter(|path| path.extension().is_some_and(|found| found == "rs"));
    for file in files {
        let name = file.file_stem().expect("a name").to_str().expect("UTF-8");
        let line = format!("\nmod {name};\n");
        let is_listed = name == "suite" || include_str!("suite.rs").contains(&line);
        assert!(is_listed, "{name} is no module of suite.rs");
    }
}
