//! Arithmetic between versions of weights.

use super::optimizer::NUMBERS;
use super::probe::{download, floats, poisoned, same_bits, upload};
use crate::backend::{AdamWCoefficients, Backend};
use crate::reference;

/// Every operation meets the bits of its reference, on both sides of every block size, and leaves
/// its operands alone.
pub fn versions_meet_the_bits<B: Backend>(devices: &[B]) {
    let numbers = AdamWCoefficients { decay: 0.9, ..NUMBERS };
    for len in [1, 3, 4, 5, 1023, 1024, 1025, 70_001] {
        let [w, m, other] = [1, 2, 3].map(|seed| floats(len, seed));
        // Squares of all sizes, one of them not even a normal number.
        let mut v: Vec<f32> = floats(len, 4).iter().map(|x| x * x).collect();
        v[0] = 1e-42;
        let mut change = floats(len, 5);
        let mut pulled = w.clone();
        let mut puller = other.clone();
        let ahead = reference::adam_ahead(&w, &m, &v, numbers);
        let along = reference::weights_along(&w, &m, 0.37);
        reference::track_change(&mut change, &w, &other, 0.135);
        reference::pull_together(&mut pulled, &mut puller, 0.25);
        for device in devices {
            let [ws, ms, vs, others] = [&w, &m, &v, &other].map(|x| upload(device, x));
            let mut to = poisoned(device, len);
            device.adam_ahead(&ws, &ms, &vs, numbers, &mut to);
            same_bits(&download(device, &to), &ahead);
            let mut to = poisoned(device, len);
            device.weights_along(&ws, &ms, 0.37, &mut to);
            same_bits(&download(device, &to), &along);
            let mut to = upload(device, &floats(len, 5));
            device.track_change(&ws, &others, 0.135, &mut to);
            same_bits(&download(device, &to), &change);
            for (buffer, floats) in [(&ws, &w), (&ms, &m), (&vs, &v), (&others, &other)] {
                same_bits(&download(device, buffer), floats);
            }
            let mut ws = ws;
            let mut others = others;
            device.pull_together(0.25, &mut ws, &mut others);
            same_bits(&download(device, &ws), &pulled);
            same_bits(&download(device, &others), &puller);
        }
    }
}
