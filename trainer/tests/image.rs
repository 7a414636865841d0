//! A layer's bytes, as they travel and lie in a checkpoint: fixed, and refused when damaged.

use zbelastic_kernels::HostFloats;
use zbelastic_trainer::elastic::{FLOATS_MAX, ImageError, LayerImage};
use zbelastic_trainer::model::{Family, ModelConfig, ModelError};
use zbelastic_types::{LayerId, Step};

mod common;

fn image() -> LayerImage {
    let (w, m, v) = (vec![1.0, -2.5], vec![0.0, f32::MIN_POSITIVE], vec![0.25, 3e38]);
    let [w, m, v] = [w, m, v].map(HostFloats::from);
    LayerImage { layer: LayerId(258), version: Step(77), w, m, v }
}

#[test]
fn the_bytes_of_a_layer_do_not_change() {
    let expected = [
        "01",
        "02010000",
        "4d00000000000000",
        "0200000000000000",
        "0000803f000020c0",
        "0000000000008000",
        "0000803ee6b1617f",
    ];
    let found: String = image().encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, expected.concat());
    assert_eq!(LayerImage::decode(&image().encode()), Ok(image()));
    let none = || HostFloats::from(Vec::new());
    let empty = LayerImage { w: none(), m: none(), v: none(), ..image() };
    assert_eq!(LayerImage::decode(&empty.encode()), Ok(empty));
}

#[test]
fn bytes_that_are_cut_or_go_on_are_refused() {
    let bytes = image().encode();
    for len in 0..bytes.len() {
        let refused = LayerImage::decode(&bytes[..len]);
        assert!(matches!(refused, Err(ImageError::Length { found, .. }) if found == len as u64));
    }
    let longer = [&bytes[..], &[0]].concat();
    let (expected, found) = (bytes.len() as u64, longer.len() as u64);
    assert_eq!(LayerImage::decode(&longer), Err(ImageError::Length { expected, found }));
}

/// Whatever one byte becomes, the bytes are refused or are another layer; nothing is guessed, and
/// a length that is announced costs no memory.
#[test]
fn one_changed_byte_is_refused_or_makes_another_layer() {
    let bytes = image().encode();
    for (index, flipped) in (0..bytes.len()).flat_map(|i| (1..=255u8).map(move |x| (i, x))) {
        let mut damaged = bytes.clone();
        damaged[index] ^= flipped;
        match LayerImage::decode(&damaged) {
            Ok(found) => assert_eq!(found.encode(), damaged),
            Err(ImageError::Version { found }) => assert_eq!((index, found), (0, damaged[0])),
            Err(ImageError::Length { .. } | ImageError::Size { .. }) => {
                assert!((13..21).contains(&index), "byte {index} is no length");
            }
        }
    }
    let mut huge = bytes;
    huge[13..21].copy_from_slice(&(FLOATS_MAX + 1).to_le_bytes());
    assert_eq!(LayerImage::decode(&huge), Err(ImageError::Size { found: FLOATS_MAX + 1 }));
}

/// What could not be written is not begun to be trained.
#[test]
fn a_model_with_a_layer_that_no_checkpoint_holds_is_refused() {
    let width = 1 << 20;
    let model = ModelConfig { width, vocabulary: 1 << 13, ..common::tiny_model(Family::Gpt2) };
    let model = ModelConfig { heads: 1 << 14, kv_heads: 1 << 14, head_width: 64, ..model };
    let errors = model.errors();
    let [ModelError::LargeLayer { found, .. }] = errors[..] else { panic!("{errors:?}") };
    assert!(found > FLOATS_MAX);
}
