//! How long weights of others take to be read, beside reading their file.
//!
//! ```sh
//! cargo run --release -p zbelastic-trainer --example importing FOLDER [THREADS]
//! ```
//!
//! `FOLDER` has a `config.json` and a `model.safetensors`, as transformers writes them. The file is
//! read into fresh memory of its own size, and then as the layers' floats, several times in turn; the
//! best of each is compared. The file is in the system's cache then: the disk is no part of it.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use zbelastic_kernels::HostThreads;
use zbelastic_trainer::hf::{
    MODEL_CONFIG, WEIGHTS_FILE, WeightBytes, WeightFile, import_files, parse_config,
};

const TIMES: usize = 5;

struct OpenFile {
    file: File,
    length: u64,
}

impl WeightBytes for OpenFile {
    fn len(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("expected a folder")?);
    let model = parse_config(&fs::read_to_string(folder.join(MODEL_CONFIG))?)?;
    let file = File::open(folder.join(WEIGHTS_FILE))?;
    let length = file.metadata()?.len();
    let file = OpenFile { file, length };
    let threads = std::env::args().nth(2).map_or(Ok(1), |count| count.parse())?;
    let host = HostThreads::new(threads)?;
    let [mut read, mut imported] = [f64::INFINITY; 2];
    for _ in 0..TIMES {
        let began = Instant::now();
        let mut bytes = vec![0; length as usize];
        file.read(0, &mut bytes)?;
        read = read.min(began.elapsed().as_secs_f64());
        drop(bytes);
        let began = Instant::now();
        let files = [WeightFile { name: WEIGHTS_FILE.to_owned(), bytes: &file }];
        let layers = import_files(&model, &files, None, &host)?;
        imported = imported.min(began.elapsed().as_secs_f64());
        drop(layers);
    }
    let gigabytes = length as f64 / 1e9;
    println!(
        "{gigabytes:.2} GB: read in {read:.3} s ({:.2} GB/s), imported by {threads} threads in \
         {imported:.3} s, {:.2} times that",
        gigabytes / read,
        imported / read
    );
    Ok(())
}
