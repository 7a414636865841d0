//! Fingerprints of states: on every device those of the reference.

use super::optimizer::numbers_of;
use super::probe::{download, floats, upload};
use crate::backend::{AdamWRange, Backend};
use crate::reference;

/// Lengths on both sides of what goes together: lanes, threads, blocks, tasks.
const LENS: [usize; 10] = [0, 1, 3, 15, 16, 17, 1023, 1025, 65_536, 262_151];

/// Floats with signs, zeros and what is not finite among them.
fn part(len: usize, seed: u64) -> Vec<f32> {
    let mut part = floats(len, seed);
    for (index, x) in part.iter_mut().enumerate() {
        match index % 11 {
            3 => *x = 0.0,
            5 => *x = -0.0,
            7 => *x = f32::NAN,
            _ => {}
        }
    }
    part
}

/// The sums of a state as it lies are those of the reference, and reading them late changes
/// nothing.
pub fn state_sums<B: Backend>(devices: &[B]) {
    for device in devices {
        let mut later = Vec::new();
        // As many moments as weights, fewer, and none.
        let moments = LENS.into_iter().flat_map(|len| [len, len / 3, 0].map(|held| (len, held)));
        for (len, held) in moments {
            let parts = [(len, 1), (held, 2), (held, 3)].map(|(len, seed)| part(len, seed));
            let [w, m, v] = parts.each_ref().map(|part| upload(device, part));
            let expected = reference::state_sums(parts.each_ref().map(Vec::as_slice));
            assert_eq!(device.state_sums(&w, &m, &v).wait(), Ok(expected), "{len} places");
            later.push((device.state_sums(&w, &m, &v), expected, len));
        }
        for (found, expected, len) in &later {
            assert_eq!(found.wait(), Ok(*expected), "{len} places, read late");
            assert_eq!(found.wait(), Ok(*expected), "{len} places, read again");
        }
    }
}

/// Where commits add up what they leave: the state is that of a commit that does not, and the sums
/// are those of the reference over it.
pub fn commits_sum_what_they_leave<B: Backend>(devices: &[B]) {
    for device in devices {
        let Some(optimizer) = device.packed_weights_optimizer() else { return };
        for (len, run_len) in [(1, 1), (1023, 1023), (5000, 5000), (5000, 2047), (9001, 250)] {
            let starts = (0..len).step_by(run_len);
            let runs: Vec<AdamWRange> = starts
                .enumerate()
                .map(|(index, start)| AdamWRange {
                    range: (start..len.min(start + run_len)).into(),
                    numbers: numbers_of(index),
                })
                .collect();
            let buffers = || [1, 2, 3].map(|seed| upload(device, &floats(len, seed)));
            let g = upload(device, &floats(len, 4));
            let ([mut w, mut m, mut v], mut plain) = (buffers(), buffers());
            let sums = optimizer.commit_and_sum(&runs, &g, &mut w, &mut m, &mut v);
            let [plain_w, plain_m, plain_v] = &mut plain;
            optimizer.commit(&runs, &g, plain_w, plain_m, plain_v);
            let found = [&w, &m, &v].map(|part| download(device, part));
            let bits = |part: &[f32]| part.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for (found, plain) in found.iter().zip(&plain) {
                assert_eq!(bits(found), bits(&download(device, plain)), "{len} in {run_len}s");
            }
            let expected = reference::state_sums(found.each_ref().map(Vec::as_slice));
            assert_eq!(sums.wait(), Ok(expected), "{len} in {run_len}s");
        }
    }
}
