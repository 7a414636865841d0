//! A layer's bytes, as they travel and lie in a checkpoint: fixed, and refused when damaged.

use zbelastic_kernels::HostFloats;
use zbelastic_trainer::elastic::{
    FLOATS_MAX, ImageError, LayerAssembler, LayerImage, layer_digest,
};
use zbelastic_trainer::model::{Family, ModelConfig, ModelError};
use zbelastic_types::{LayerId, Step};

fn image() -> LayerImage {
    let w = vec![1.0, -2.5];
    let m = vec![0.0, f32::MIN_POSITIVE];
    let v = vec![0.25, 3e38];
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

/// Where moments are fewer, the eight bytes of the length are two of four: weights less one, and moments.
#[test]
fn a_layer_with_fewer_moments_has_a_form_of_its_own() {
    let image = image();
    let cut = |part: &HostFloats, len: usize| part[..len].iter().copied().collect::<HostFloats>();
    for moments in [0, 1] {
        let image =
            LayerImage { m: cut(&image.m, moments), v: cut(&image.v, moments), ..image.clone() };
        let bytes = image.encode();
        assert_eq!((bytes[0], bytes.len()), (2, 21 + 4 * (image.w.len() + 2 * moments)));
        let weights = image.w.len() as u32;
        assert_eq!(bytes[13..17], (weights - 1).to_le_bytes());
        assert_eq!(bytes[17..21], (moments as u32).to_le_bytes());
        assert_eq!(LayerImage::decode(&bytes).as_ref(), Ok(&image));
        assert_eq!(assemble(&bytes, 3, bytes.len() as u64).as_ref(), Ok(&image));
        let mut many = bytes.clone();
        many[17..21].copy_from_slice(&weights.to_le_bytes());
        let refused = Err(ImageError::Moments { weights: weights.into(), found: weights.into() });
        assert_eq!(LayerImage::decode(&many), refused);
    }
}

#[test]
fn bytes_that_are_cut_or_go_on_are_refused() {
    let bytes = image().encode();
    for len in 0..bytes.len() {
        let refused = LayerImage::decode(&bytes[..len]);
        assert!(matches!(refused, Err(ImageError::Length { found, .. }) if found == len as u64));
    }
    let longer = [&bytes[..], &[0]].concat();
    let expected = bytes.len() as u64;
    let found = longer.len() as u64;
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
            // The form for fewer moments reads the length as two.
            Err(ImageError::Moments { .. }) => assert_eq!((index, damaged[0]), (0, 2)),
            Err(
                ImageError::Length { .. } | ImageError::Size { .. } | ImageError::Memory { .. },
            ) => {
                let is_other_form = index == 0 && damaged[0] == 2;
                assert!(is_other_form || (13..21).contains(&index), "byte {index} is no length");
            }
            Err(error @ ImageError::Values { .. }) => panic!("all bytes are there: {error}"),
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
    let model =
        ModelConfig { width, vocabulary: 1 << 13, ..crate::common::tiny_model(Family::Gpt2) };
    let model = ModelConfig { heads: 1 << 14, kv_heads: 1 << 14, head_width: 64, ..model };
    let errors = model.errors();
    let [ModelError::LargeLayer { found, .. }] = errors[..] else { panic!("{errors:?}") };
    assert!(found > FLOATS_MAX);
}

/// Puts a layer together from `bytes` in pieces of `piece` bytes.
fn assemble(bytes: &[u8], piece: usize, expected: u64) -> Result<LayerImage, ImageError> {
    let mut layer = LayerAssembler::new(expected);
    bytes.chunks(piece).try_for_each(|piece| layer.push(piece))?;
    assert_eq!(layer.found(), bytes.len() as u64);
    let (image, digest) = layer.finish()?;
    assert_eq!(digest, layer_digest(&image), "the digest of pieces of {piece} bytes");
    Ok(image)
}

#[test]
fn pieces_of_any_size_make_the_layer_and_its_digest() {
    let parts = [0.5, -3.0, 1e-30].map(|x| (0..37).map(|i| x * i as f32).collect());
    let [w, m, v] = parts;
    let image = LayerImage { w, m, v, ..image() };
    let bytes = image.encode();
    for piece in 1..=bytes.len() {
        let found = assemble(&bytes, piece, bytes.len() as u64);
        assert_eq!(found.as_ref(), Ok(&image), "pieces of {piece} bytes");
    }
    let none = || HostFloats::from(Vec::new());
    let empty = LayerImage { w: none(), m: none(), v: none(), ..image };
    assert_eq!(assemble(&empty.encode(), 4, 21), Ok(empty));
}

#[test]
fn pieces_that_are_no_layer_of_the_expected_length_are_refused() {
    let bytes = image().encode();
    let expected = bytes.len() as u64;
    for found in 0..expected {
        let refused = assemble(&bytes[..found as usize], 5, expected);
        assert_eq!(refused, Err(ImageError::Length { expected, found }));
    }
    let longer = [&bytes[..], &[0]].concat();
    let refused = assemble(&longer, 7, expected);
    assert_eq!(refused, Err(ImageError::Length { expected, found: expected + 1 }));
    // The header announces other bytes than are expected: nothing is allocated for either.
    let huge = 1 << 60;
    let refused = assemble(&bytes, 7, huge);
    assert_eq!(refused, Err(ImageError::Length { expected, found: huge }));
    let mut damaged = bytes.clone();
    damaged[0] = 9;
    assert_eq!(assemble(&damaged, 1, expected), Err(ImageError::Version { found: 9 }));
    let mut damaged = bytes;
    damaged[13..21].copy_from_slice(&(FLOATS_MAX + 1).to_le_bytes());
    assert_eq!(assemble(&damaged, 64, expected), Err(ImageError::Size { found: FLOATS_MAX + 1 }));
}
