//! The parts of what a layer's pass keeps, and those that are recomputed without a product.

use zbelastic_kernels::{AttentionMask, Backend};

use super::{
    AttentionStash, HeadStash, Logits, MlpStash, NormedStash, PassContext, QkNormStash,
    norm_forward,
};
use crate::model::config::Family;
use crate::model::parts::LayerParts;
use crate::model::recompute::{RecomputedOps, StashPart};
use crate::model::state::LayerState;

/// Parts by name, to be written.
pub(in crate::model) type StashPartsMut<'a, T> = Vec<(StashPart, &'a mut T)>;

impl<T> NormedStash<T> {
    fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<NormedStash<U>, E> {
        Ok(NormedStash {
            y: make(StashPart::Norm, self.y)?,
            statistics: make(StashPart::Statistics, self.statistics)?,
            partials: make(StashPart::Partials, self.partials)?,
        })
    }

    fn list<'a>(&'a mut self, parts: &mut StashPartsMut<'a, T>) {
        parts.extend([
            (StashPart::Norm, &mut self.y),
            (StashPart::Statistics, &mut self.statistics),
            (StashPart::Partials, &mut self.partials),
        ]);
    }
}

impl<T> QkNormStash<T> {
    fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<QkNormStash<U>, E> {
        Ok(QkNormStash {
            before: make(StashPart::QkNorm, self.before)?,
            statistics: make(StashPart::QkNorm, self.statistics)?,
            partials: make(StashPart::Partials, self.partials)?,
        })
    }

    fn list<'a>(&'a mut self, parts: &mut StashPartsMut<'a, T>) {
        parts.extend([
            (StashPart::QkNorm, &mut self.before),
            (StashPart::QkNorm, &mut self.statistics),
            (StashPart::Partials, &mut self.partials),
        ]);
    }
}

impl<T> AttentionStash<T> {
    pub(in crate::model) fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<AttentionStash<U>, E> {
        Ok(AttentionStash {
            normed: self.normed.try_map(make)?,
            qk_norm: self.qk_norm.try_map(make)?,
            qkv: make(StashPart::Qkv, self.qkv)?,
            out: make(StashPart::Attention, self.out)?,
            log_sums: make(StashPart::LogSums, self.log_sums)?,
            key_value_gradient: make(StashPart::LaterGradient, self.key_value_gradient)?,
        })
    }

    pub(in crate::model) fn list<'a>(&'a mut self, parts: &mut StashPartsMut<'a, T>) {
        self.normed.list(parts);
        self.qk_norm.list(parts);
        parts.extend([
            (StashPart::Qkv, &mut self.qkv),
            (StashPart::Attention, &mut self.out),
            (StashPart::LogSums, &mut self.log_sums),
            (StashPart::LaterGradient, &mut self.key_value_gradient),
        ]);
    }

    /// R of these operations, with what earlier slices left. Queries and keys are turned already.
    pub(in crate::model) fn recompute<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        (mask, earlier): (AttentionMask<'_>, &[&T]),
        x: &T,
        ops: RecomputedOps,
    ) {
        let LayerParts::Attention { norm, .. } = &state.parts else { unreachable!() };
        if ops.norm {
            norm_forward(context, state, norm, x, &mut self.normed);
        }
        if ops.attention {
            self.attend(context, mask, earlier);
        }
    }
}

impl<T> MlpStash<T> {
    pub(in crate::model) fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<MlpStash<U>, E> {
        Ok(MlpStash {
            normed: self.normed.try_map(make)?,
            before: make(StashPart::Before, self.before)?,
            hidden: make(StashPart::Hidden, self.hidden)?,
        })
    }

    pub(in crate::model) fn list<'a>(&'a mut self, parts: &mut StashPartsMut<'a, T>) {
        self.normed.list(parts);
        parts
            .extend([(StashPart::Before, &mut self.before), (StashPart::Hidden, &mut self.hidden)]);
    }

    /// R of these operations.
    pub(in crate::model) fn recompute<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        x: &T,
        ops: RecomputedOps,
    ) {
        let LayerParts::Mlp { norm, .. } = &state.parts else { unreachable!() };
        if ops.norm {
            norm_forward(context, state, norm, x, &mut self.normed);
        }
        if ops.activation {
            let backend = context.backend;
            let rows = context.hidden_rows();
            match context.model.family {
                Family::Gpt2 => backend.gelu_forward(rows, &self.before, &mut self.hidden),
                Family::Llama => backend.swiglu_forward(rows, &self.before, &mut self.hidden),
            }
        }
    }
}

impl<T> HeadStash<T> {
    pub(in crate::model) fn try_map<U, E>(
        self,
        make: &mut impl FnMut(StashPart, T) -> Result<U, E>,
    ) -> Result<HeadStash<U>, E> {
        self.0.try_map(make).map(HeadStash)
    }

    pub(in crate::model) fn list<'a>(&'a mut self, parts: &mut StashPartsMut<'a, T>) {
        self.0.list(parts);
    }

    /// R of these operations.
    pub(in crate::model) fn recompute<B: Backend<Buffer = T>>(
        &mut self,
        context: &PassContext<'_, B>,
        state: &LayerState<B>,
        x: &T,
        ops: RecomputedOps,
    ) {
        let LayerParts::Head { norm, .. } = &state.parts else { unreachable!() };
        if ops.norm {
            norm_forward(context, state, norm, x, &mut self.0);
        }
    }
}

impl<T> Logits<T> {
    /// Both parts, in order.
    pub(in crate::model) fn list(&mut self) -> [&mut T; 2] {
        [&mut self.logits, &mut self.log_sums]
    }
}
