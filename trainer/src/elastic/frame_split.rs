//! Where tensors are cut that are too many or too long for one frame.

use std::ops::Range;

/// How much fits into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Parts, at least one.
    pub parts: usize,
    /// Floats, all parts together, at least one.
    pub floats: usize,
}

/// What a gradient travels in: 16 MiB at most, so that neither end holds more of it than that, and
/// a boundary tensor waits for no more than that on its way.
pub const GRADIENT_FRAME_LIMITS: FrameLimits = FrameLimits { parts: 64, floats: 4 << 20 };

/// A run of floats of one tensor, as a part of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorFragment {
    /// Index of the tensor among those that are split.
    pub tensor: usize,
    /// The range of the tensor's floats.
    pub floats: Range<usize>,
}

/// The frames in which tensors of these lengths travel, in order: each as full as it can be, so
/// that a tensor is cut only where a frame ends. One at least.
#[must_use]
pub fn split_into_frames(lengths: &[usize], limits: FrameLimits) -> Vec<Vec<TensorFragment>> {
    let mut frames = Vec::new();
    let mut frame = Vec::new();
    let mut left = limits.floats;
    for (tensor, &length) in lengths.iter().enumerate() {
        let mut begin = 0;
        // A tensor without floats has a part of its own, too.
        while begin < length || (length == 0 && begin == 0) {
            if frame.len() == limits.parts || left == 0 {
                frames.push(std::mem::take(&mut frame));
                left = limits.floats;
            }
            let end = length.min(begin + left);
            frame.push(TensorFragment { tensor, floats: begin..end });
            left -= end - begin;
            begin = end;
            if length == 0 {
                break;
            }
        }
    }
    frames.push(frame);
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames as texts: `0:0..4 1:0..2`.
    fn check(lengths: &[usize], parts: usize, floats: usize, expected: &[&str]) {
        let frames = split_into_frames(lengths, FrameLimits { parts, floats });
        let text = |fragment: &TensorFragment| format!("{}:{:?}", fragment.tensor, fragment.floats);
        let texts: Vec<String> = frames
            .iter()
            .map(|frame| frame.iter().map(text).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(texts, expected, "{lengths:?}");
    }

    #[test]
    fn tensors_that_fit_travel_together() {
        check(&[4, 2], 2, 6, &["0:0..4 1:0..2"]);
        check(&[6], 2, 6, &["0:0..6"]);
        check(&[], 2, 6, &[""]);
        check(&[0, 6], 2, 6, &["0:0..0 1:0..6"]);
    }

    #[test]
    fn one_tensor_too_many_and_one_float_too_many_begin_another_frame() {
        check(&[1, 1, 1], 2, 6, &["0:0..1 1:0..1", "2:0..1"]);
        check(&[4, 3], 2, 6, &["0:0..4 1:0..2", "1:2..3"]);
        check(&[7], 2, 6, &["0:0..6", "0:6..7"]);
        check(&[6, 0], 2, 6, &["0:0..6", "1:0..0"]);
    }

    #[test]
    fn a_tensor_is_longer_than_many_frames() {
        check(&[1, 13, 2], 2, 6, &["0:0..1 1:0..5", "1:5..11", "1:11..13 2:0..2"]);
    }

    #[test]
    fn a_frame_of_gradients_takes_64_layers_and_16_mebibytes() {
        assert_eq!(split_into_frames(&[1; 64], GRADIENT_FRAME_LIMITS).len(), 1);
        assert_eq!(split_into_frames(&[1; 65], GRADIENT_FRAME_LIMITS).len(), 2);
        assert_eq!(split_into_frames(&[1 << 22], GRADIENT_FRAME_LIMITS).len(), 1);
        assert_eq!(split_into_frames(&[(1 << 22) + 1], GRADIENT_FRAME_LIMITS).len(), 2);
    }
}
