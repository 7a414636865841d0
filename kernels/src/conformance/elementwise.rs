//! Sums of two buffers, element by element.

use super::probe::{download, floats, upload};
use crate::backend::{Backend, BufferView, BufferViewMut};

/// Each element is one sum, rounded once, whatever else lies in the buffers; what is beside the
/// ranges stays as it was.
pub fn sums_of_buffers<B: Backend>(devices: &[B]) {
    for device in devices {
        for (len, start) in [(0, 0), (1, 3), (17, 5), (1023, 8), (65_537, 4), (262_151, 1)] {
            let left = floats(len + start, 1);
            let mut expected = floats(len + start + 3, 2);
            let from = upload(device, &left);
            let mut to = upload(device, &expected);
            let range = start..start + len;
            device.add(
                BufferView::new(&from, range.clone()),
                BufferViewMut::new(&mut to, range.clone()),
            );
            for (sum, left) in expected[range.clone()].iter_mut().zip(&left[range]) {
                *sum += left;
            }
            let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&download(device, &to)), bits(&expected), "{len} from {start}");
        }
    }
}
