//! How fast a tokenizer encodes a file on one core, by its own path and by the crate `tokenizers`.
//!
//! ```sh
//! cargo run --release -p zbelastic-tokenizer --example encode_rate -- book.txt [TOKENIZER]
//! ```
//!
//! Without a tokenizer one of 8192 tokens is trained on the file. The file is cut into documents of
//! some lines, as corpora have them. On Linux the time is that of the processor, so that other
//! programs do not count.

use std::error::Error;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use zbelastic_tokenizer::train::{TrainRequest, train};
use zbelastic_tokenizer::{SpecialTokens, Tokenizer};

const VOCAB_SIZE: usize = 8192;
const LINES_PER_DOCUMENT: usize = 40;
const REPEATS: usize = 5;

/// Seconds of this thread on a processor, or else of the clock since `start`.
fn seconds(start: Instant) -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let on_cpu = stat.and_then(|stat| stat.split(' ').next()?.parse::<f64>().ok());
    on_cpu.map_or_else(|| start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

/// Prints the best of some rates of `encode`, which returns a number of tokens.
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn measure(
    name: &str,
    bytes: usize,
    mut encode: impl FnMut() -> Result<usize, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut tokens = 0;
    for _ in 0..REPEATS {
        let before = seconds(start);
        tokens = encode()?;
        best = best.min(seconds(start) - before);
    }
    let rate = bytes as f64 / 1e6 / best;
    println!(
        "{name}: {rate:.1} MB/s a core, {tokens} tokens, {:.2} bytes a token",
        bytes as f64 / tokens as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: encode_rate FILE [TOKENIZER]")?;
    let text = fs::read_to_string(path)?;
    let tokenizer = match arguments.next() {
        Some(folder) => Tokenizer::open(Path::new(&folder))?,
        None => Tokenizer::from_files(&train(&TrainRequest::gpt2(VOCAB_SIZE), [&text], |_| ())?)?,
    };
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let documents: Vec<_> = lines.chunks(LINES_PER_DOCUMENT).map(|lines| lines.concat()).collect();
    println!("{} documents, fast path: {}", documents.len(), tokenizer.is_fast());
    measure("this package", text.len(), || {
        let ids =
            tokenizer.encode_documents(&documents, SpecialTokens::Exclude, NonZeroUsize::MIN)?;
        Ok(ids.iter().map(Vec::len).sum())
    })?;
    measure("the crate, with offsets", text.len(), || {
        let count = |document| Ok(tokenizer.encode_with_offsets(document)?.ids.len());
        documents.iter().map(|document| count(document)).sum()
    })
}
