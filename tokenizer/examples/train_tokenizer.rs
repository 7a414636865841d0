//! Trains a byte-level BPE on a file and writes it into a folder.
//!
//! ```sh
//! cargo run --release -p zbelastic-tokenizer --example train_tokenizer -- book.txt 8192 DIR [THREADS]
//! ```

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;

use zbelastic_tokenizer::train::{TrainRequest, train};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [file, vocab_size, folder, rest @ ..] = &arguments[..] else {
        return Err("usage: train_tokenizer FILE VOCAB DIR [THREADS]".into());
    };
    let threads = rest.first().map_or(Ok(NonZeroUsize::MIN), |threads| threads.parse())?;
    let request = TrainRequest { threads, ..TrainRequest::gpt2(vocab_size.parse()?) };
    let text = std::fs::read_to_string(file)?;
    let files = train(&request, [text], |progress| eprintln!("{progress:?}"))?;
    files.write(Path::new(folder))?;
    Ok(())
}
