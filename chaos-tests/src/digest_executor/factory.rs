//! What makes executors and copies of the digest model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_kernels::AllocateError;
use zbelastic_trainer::elastic::{LayerImage, StageFactory};
use zbelastic_trainer::model::ShardPart;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{LayerId, StageIndex, Step};

use super::DigestStageExecutor;
use crate::digest_layer::{DigestLayer, DigestLayerCopy};
use crate::digest_model::{DigestGradient, DigestShape};
use crate::numeric_faults::NumericFaults;

/// The digest model of one node.
#[derive(Clone, Debug)]
pub struct DigestModel {
    /// How the model is cut out.
    pub shape: DigestShape,
    /// The faults of this node's numbers.
    pub faults: NumericFaults,
    /// Gradients that a known bug leaves behind.
    pub leftovers: Rc<RefCell<BTreeMap<LayerId, DigestGradient>>>,
}

impl StageFactory for DigestModel {
    type Executor = DigestStageExecutor;
    type Copy = DigestLayerCopy;

    fn initial(&self, layer: LayerId) -> LayerImage {
        self.shape.initial(layer).image(layer, Step(0))
    }

    fn fits(&self, image: &LayerImage) -> bool {
        let model = self.shape.initial(image.layer).image(image.layer, image.version);
        [(&image.w, &model.w), (&image.m, &model.m), (&image.v, &model.v)]
            .iter()
            .all(|(found, expected)| found.len() == expected.len())
    }

    fn executor(
        &self,
        setup: &StageSetup,
        stage: StageIndex,
        layers: &[Arc<LayerImage>],
    ) -> Result<DigestStageExecutor, AllocateError> {
        let mut images = layers.iter();
        let mut chunks = BTreeMap::new();
        for (chunk, range) in setup.plan.chunks_of(stage) {
            let own = images.by_ref().take(range.ids().len());
            let layer = |image: &Arc<LayerImage>| {
                let leftover = self.leftovers.borrow().get(&image.layer).copied();
                let part = setup.plan.shard_part(stage, chunk, image.layer.0);
                let layer = match part {
                    Some(ShardPart::Gathered) => DigestLayer::gathered(image),
                    Some(ShardPart::Updated) | None => DigestLayer::of_image(image),
                };
                DigestLayer { g: leftover.unwrap_or_default(), ..layer }
            };
            chunks.insert(chunk, own.map(layer).collect::<Vec<_>>());
        }
        let lane_order = setup.plan.lane_order();
        let nothing = vec![DigestGradient::default(); lane_order.levels()];
        let waiting = |layers: &Vec<DigestLayer>| vec![nothing.clone(); layers.len()];
        Ok(DigestStageExecutor {
            shape: self.shape.clone(),
            accumulated: chunks.keys().map(|chunk| (*chunk, 0)).collect(),
            waiting: chunks.iter().map(|(chunk, layers)| (*chunk, waiting(layers))).collect(),
            lane_order,
            head_parts: BTreeMap::new(),
            chunks,
            stashes: BTreeMap::new(),
            slice_count: setup.plan.program.slice_count,
            placement: setup.plan.placement().clone(),
            offloaded: BTreeMap::new(),
            result: None,
            faults: self.faults.clone(),
            is_copied: setup.copies_wanted,
            passes_run: 0,
            turns_dropped: 0,
            dropped: 0,
            leftovers: self.leftovers.clone(),
            is_first_turn: true,
        })
    }

    fn copy(&self, image: &LayerImage) -> Result<DigestLayerCopy, AllocateError> {
        Ok(DigestLayerCopy::new(self.shape.clone(), image))
    }
}
