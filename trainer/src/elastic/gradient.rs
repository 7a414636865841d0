//! Gradients on their way to the workers that keep copies of layers, in parts of bounded length.

use std::ops::{Deref, Range};
use std::sync::Arc;

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::{DeviceFault, HostFloats};
use zbelastic_types::LayerId;

use super::CopyRefusal;
use super::frame_split::{FrameLimits, split_into_frames};
use crate::stage::LayerGradient;

/// Some floats of a layer's gradient. Parts of one gradient share its memory.
#[derive(Clone, Debug)]
pub struct GradientPart {
    gradient: Arc<LayerGradient>,
    /// Which floats of `gradient` they are.
    range: Range<usize>,
    /// Where the first of them stands in the layer.
    first: usize,
}

impl GradientPart {
    /// All of a gradient.
    #[must_use]
    pub fn whole(gradient: Arc<LayerGradient>) -> Self {
        let range = 0..gradient.g.len();
        Self { gradient, range, first: 0 }
    }

    /// Floats that arrived: those of a layer from `first` on.
    #[must_use]
    pub fn arrived(layer: LayerId, turn: Turn, first: usize, floats: HostFloats) -> Self {
        let range = 0..floats.len();
        Self { gradient: Arc::new(LayerGradient { layer, turn, g: floats.into() }), range, first }
    }

    /// The messages that gradients travel in, in order, one at least.
    #[must_use]
    pub fn messages(gradients: &[Arc<LayerGradient>], limits: FrameLimits) -> Vec<Vec<Self>> {
        let lengths: Vec<usize> = gradients.iter().map(|gradient| gradient.g.len()).collect();
        let part = |fragment: super::TensorFragment| Self {
            gradient: gradients[fragment.tensor].clone(),
            first: fragment.floats.start,
            range: fragment.floats,
        };
        let message =
            |fragments: Vec<super::TensorFragment>| fragments.into_iter().map(part).collect();
        split_into_frames(&lengths, limits).into_iter().map(message).collect()
    }

    /// Id of the layer that the gradient belongs to.
    #[must_use]
    pub fn layer(&self) -> LayerId {
        self.gradient.layer
    }

    /// The turn it was computed in.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.gradient.turn
    }

    /// Where the first of its floats stands in the layer.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first
    }

    /// How many floats it has, without a wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Its floats. Those that a device copies are waited for.
    ///
    /// # Errors
    /// If the device failed before they were read.
    pub fn wait(&self) -> Result<GradientFloats, DeviceFault> {
        Ok(GradientFloats { floats: self.gradient.g.wait()?, range: self.range.clone() })
    }
}

/// Floats of a layer's gradient on the host.
#[derive(Clone, Debug)]
pub struct GradientFloats {
    floats: HostFloats,
    range: Range<usize>,
}

impl Deref for GradientFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats[self.range.clone()]
    }
}

/// How much of a gradient is held, of which parts come in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct GradientProgress {
    /// The turn, and the floats of it that are here.
    here: Option<(Turn, usize)>,
}

impl GradientProgress {
    /// Counts a part of a gradient of `len` floats in all.
    ///
    /// # Errors
    /// If it does not follow on what is here, or goes beyond the end.
    pub fn count(&mut self, part: &GradientPart, len: usize) -> Result<(), CopyRefusal> {
        let found = part.first();
        let here = self.here.filter(|(turn, _)| *turn == part.turn());
        let expected = here.map_or(0, |(_, floats)| floats);
        if found != 0 && found != expected {
            return Err(CopyRefusal::Gap { expected, found });
        }
        let floats = found.checked_add(part.len()).filter(|floats| *floats <= len);
        self.here = Some((part.turn(), floats.ok_or(CopyRefusal::OtherLayer)?));
        Ok(())
    }

    /// The turn of a gradient of `len` floats, if all of it is here.
    #[must_use]
    pub fn whole(&self, len: usize) -> Option<Turn> {
        self.here.filter(|(_, floats)| *floats == len).map(|(turn, _)| turn)
    }

    /// It is held no more.
    pub fn clear(&mut self) {
        self.here = None;
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Attempt, Generation, Step};

    use super::*;

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) }
    }

    fn gradient(layer: u32, floats: &[f32]) -> Arc<LayerGradient> {
        Arc::new(LayerGradient { layer: LayerId(layer), turn: turn(4), g: floats.to_vec().into() })
    }

    #[test]
    fn gradients_travel_in_messages_of_bounded_length_and_parts_name_their_offsets() {
        let gradients = [gradient(0, &[1.0, 2.0, 3.0]), gradient(1, &[4.0, 5.0])];
        let messages = GradientPart::messages(&gradients, FrameLimits { parts: 8, floats: 2 });
        let shown = |part: &GradientPart| {
            (part.layer().0, part.first(), part.wait().expect("no fault").to_vec())
        };
        let shown: Vec<Vec<_>> = messages.iter().map(|m| m.iter().map(shown).collect()).collect();
        let expected = [
            vec![(0, 0, vec![1.0, 2.0])],
            vec![(0, 2, vec![3.0]), (1, 0, vec![4.0])],
            vec![(1, 1, vec![5.0])],
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_gradient_is_whole_when_every_part_followed_on_the_one_before() {
        let part = |step, first, len| {
            GradientPart::arrived(LayerId(0), turn(step), first, vec![0.0; len].into())
        };
        let mut held = GradientProgress::default();
        let gap = |expected, found| Err(CopyRefusal::Gap { expected, found });
        assert_eq!(held.count(&part(4, 2, 1), 5), gap(0, 2), "nothing came before");
        assert_eq!(held.count(&part(4, 0, 2), 5), Ok(()));
        assert_eq!(held.count(&part(4, 3, 2), 5), gap(2, 3), "one is missing");
        assert_eq!(held.count(&part(5, 2, 3), 5), gap(0, 2), "of another turn");
        assert_eq!(held.count(&part(4, 2, 4), 5), Err(CopyRefusal::OtherLayer), "too long");
        assert_eq!((held.count(&part(4, 2, 3), 5), held.whole(5)), (Ok(()), Some(turn(4))));
        assert_eq!((held.count(&part(4, 0, 2), 5), held.whole(5)), (Ok(()), None), "all again");
        held.clear();
        assert_eq!(held.count(&part(4, 2, 3), 5), gap(0, 2));
    }
}
