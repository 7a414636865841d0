//! Where tensors are cut that are too many or too long for one frame.

use std::ops::Range;

use zbelastic_transport::frame::{FRAME_BYTES_MAX, FRAME_PARTS_MAX};

/// What fits into a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameRoom {
    /// Parts.
    pub(super) parts: usize,
    /// Floats, all parts together.
    pub(super) floats: usize,
}

/// What fits into a frame of the tensor lane.
pub(super) const LANE: FrameRoom =
    FrameRoom { parts: FRAME_PARTS_MAX, floats: FRAME_BYTES_MAX as usize / size_of::<f32>() };

/// A part of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Of which tensor, by its place.
    pub(super) tensor: usize,
    /// Which of its floats.
    pub(super) floats: Range<usize>,
}

/// The frames in which tensors of these lengths travel, in order: each as full as it can be, so
/// that a tensor is cut only where a frame ends. One at least.
pub(super) fn cut(lengths: &[usize], room: FrameRoom) -> Vec<Vec<Part>> {
    let (mut frames, mut frame, mut left) = (Vec::new(), Vec::new(), room.floats);
    for (tensor, &length) in lengths.iter().enumerate() {
        let mut begin = 0;
        // A tensor without floats has a part of its own, too.
        while begin < length || (length == 0 && begin == 0) {
            if frame.len() == room.parts || left == 0 {
                frames.push(std::mem::take(&mut frame));
                left = room.floats;
            }
            let end = length.min(begin + left);
            frame.push(Part { tensor, floats: begin..end });
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
        let frames = cut(lengths, FrameRoom { parts, floats });
        let text = |part: &Part| format!("{}:{:?}", part.tensor, part.floats);
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
    fn a_lane_takes_64_layers_and_a_gibibyte() {
        assert_eq!(cut(&[1; 64], LANE).len(), 1);
        assert_eq!(cut(&[1; 65], LANE).len(), 2);
        assert_eq!(cut(&[1 << 28], LANE).len(), 1);
        assert_eq!(cut(&[(1 << 28) + 1], LANE).len(), 2);
        assert_eq!(cut(&[1 << 32], LANE).len(), super::super::LAYER_PIECES_MAX as usize);
    }
}
