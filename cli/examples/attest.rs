//! What it takes on a processor to tell a layer's state: by the digest of its image, and by its
//! fingerprint.
//!
//! ```text
//! cargo run --release -p zbelastic-cli --example attest -- [FLOATS] [THREADS]
//! ```

use std::time::Instant;

use zbelastic_kernels::{
    BufferView, BufferViewMut, CpuBackend, DeviceMemory, InstructionSet, Optimizer,
};
use zbelastic_trainer::elastic::{LayerImage, layer_digest};
use zbelastic_types::{LayerId, Step};

const ROUNDS: usize = 7;

/// The fastest of some rounds, in gigabytes of state a second.
fn rate(len: usize, mut round: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_secs_f64());
    }
    12.0 * len as f64 / best / 1e9
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or| arguments.next().map_or(or, |number| number.parse().expect("a number"));
    let len: usize = number(7_087_872);
    let threads: usize = number(1);
    for set in InstructionSet::available() {
        let device = CpuBackend::with_instructions(threads, set).expect("threads");
        let [w, m, v] = [1, 2, 3].map(|seed| {
            let mut buffer = device.allocate(len).expect("memory");
            let floats = zbelastic_kernels::conformance::floats(len, seed);
            device.upload(&floats, BufferViewMut::new(&mut buffer, 0..len));
            buffer
        });
        let by_digest = rate(len, || {
            let read = |buffer| device.download(BufferView::new(buffer, 0..len));
            let [w, m, v] = [&w, &m, &v].map(read);
            let [w, m, v] = [w, m, v].map(Into::into);
            let image = LayerImage { layer: LayerId(0), version: Step(0), w, m, v };
            std::hint::black_box(layer_digest(&image));
        });
        let by_fingerprint = rate(len, || {
            let _sums = std::hint::black_box(device.state_sums(&w, &m, &v).wait());
        });
        println!(
            "{set:?}, {threads} threads, {len} floats a part: digest {by_digest:.2} GB/s, \
             fingerprint {by_fingerprint:.2} GB/s, {:.2} times as fast",
            by_fingerprint / by_digest
        );
    }
}
