//! Text from a model on a device.

use zbelastic_kernels::DeviceFault;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_trainer::model::{Family, model_layers};
use zbelastic_trainer::sample::{Sampler, SamplingConfig};
use zbelastic_trainer::stage::InitialWeights;

use crate::common::tiny_model;
use crate::device::{EmulatedDevice, LaneOrder};

/// Whatever runs in which order, and a device that gave up is distinguished from a strange text.
#[test]
fn a_sample_is_drawn_on_a_device_or_its_fault_is_returned() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let weights = InitialWeights::Drawn { seed: 3 };
        let of_layer = |spec| weights.of_layer(spec).into_floats();
        let layers: Vec<Vec<f32>> = model_layers(&model).iter().map(of_layer).collect();
        let drawn = |order, gives_up| {
            let device = EmulatedDevice::new(Precision::Bf16, order, 1 << 30)?;
            let backend = CudaBackend::new(device.clone());
            let mut sampler = Sampler::new(backend, &model, 8, &layers).expect("memory");
            if gives_up {
                device.fail();
            }
            let draw = SamplingConfig::of_all(1.0, 5);
            // A device that gave up gives no memory either.
            let tokens = sampler.continue_text(&[7, 9], 12, draw).ok();
            Some((tokens, sampler.fault()))
        };
        let Some((tokens, fault)) = drawn(LaneOrder::Forwards, false) else { return };
        assert_eq!(fault, None);
        let of_text = tokens.as_deref().expect("there is memory");
        assert!(of_text.iter().any(|token| *token != of_text[0]), "{tokens:?}");
        assert_eq!(drawn(LaneOrder::Backwards, false), Some((tokens, None)));
        let (_, fault) = drawn(LaneOrder::Forwards, true).expect("there is a compiler");
        assert!(matches!(fault, Some(DeviceFault::Sticky { code: 700, .. })), "{fault:?}");
    }
}
