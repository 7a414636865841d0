//! Files as they are written here and by others, and what each defect of one is called.

use safetensors::tensor::{TensorView, serialize};

use super::*;
use crate::hf::{
    HeaderError, NamedTensor, StoredWeights, config_json, parse_config, to_named, write_initial,
    write_safetensors,
};
use crate::model::{
    AttentionBias, Family, FrozenTensors, LayerSpec, LlamaFeatures, LoraInit, LoraScaling,
    LoraSettings, RopeScaling, draw_adapters, initial_weights,
};
use safetensors::tensor::Dtype;

fn model(family: Family) -> ModelConfig {
    let kv_heads = if family == Family::Llama { 1 } else { 2 };
    ModelConfig {
        family,
        blocks: 2,
        width: 6,
        heads: 2,
        kv_heads,
        head_width: if family == Family::Llama { 4 } else { 3 },
        mlp_width: 10,
        features: LlamaFeatures::NONE,
        vocabulary: 11,
        sliding_window: None,
        positions: 5,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

fn file(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<u8> {
    let mut file = Vec::new();
    write_safetensors(model, layers, &mut file).expect("memory");
    file
}

#[test]
fn a_file_that_is_written_in_parts_is_the_one_that_the_crate_makes() {
    for family in [Family::Gpt2, Family::Llama] {
        // Wide enough that a matrix is written in more than one part.
        let model = ModelConfig { width: 1500, mlp_width: 1501, ..model(family) };
        let model = ModelConfig { blocks: 1, head_width: 750, kv_heads: 2, ..model };
        let layers: Vec<Vec<f32>> =
            model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
        let named: Vec<_> = { to_named(&model, &layers).into_iter() }
            .map(|tensor| {
                let bytes: Vec<u8> = tensor.floats.iter().flat_map(|x| x.to_le_bytes()).collect();
                (tensor.name, tensor.shape, bytes)
            })
            .collect();
        let views = named.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            (name.clone(), view.expect("a tensor is as long as its shape"))
        });
        let metadata = [("format".to_owned(), "pt".to_owned())].into();
        let expected = serialize(views, Some(metadata)).expect("views are complete");
        assert!(file(&model, &layers) == expected, "{family:?}");
        assert!(import_safetensors(&model, &expected).expect("its own") == layers, "{family:?}");
    }
}

/// A Llama with the features that go together.
fn featured(attention_bias: AttentionBias, mlp_bias: bool, qk_norm: bool) -> ModelConfig {
    let rope_scaling = Some(RopeScaling::Linear { factor: 2.0 });
    let features = LlamaFeatures { attention_bias, mlp_bias, qk_norm, rope_scaling };
    ModelConfig { features, ..model(Family::Llama) }
}

fn models() -> Vec<ModelConfig> {
    vec![
        model(Family::Gpt2),
        model(Family::Llama),
        featured(AttentionBias::Qkv, false, false),
        featured(AttentionBias::All, true, false),
        featured(AttentionBias::All, false, true),
        ModelConfig { tied: true, ..model(Family::Gpt2) },
        ModelConfig { tied: true, ..model(Family::Llama) },
    ]
}

/// Weights of which no two are equal, so that one in a wrong place is seen. A tied head has those of
/// the embedding.
fn distinct_weights(model: &ModelConfig) -> Vec<Vec<f32>> {
    let mut next = 0.0;
    let mut draw = || {
        next += 1.0;
        next
    };
    let mut layers: Vec<Vec<f32>> =
        model_layers(model).iter().map(|spec| (0..spec.len()).map(|_| draw()).collect()).collect();
    if model.tied {
        let layouts = model_layers(model);
        let embedding = layers[0][layouts[0].tensors[0].range.clone()].to_vec();
        let head = layouts.last().expect("a head").tensors.last().expect("its matrix");
        layers.last_mut().expect("a head")[head.range.clone()].copy_from_slice(&embedding);
    }
    layers
}

#[test]
fn weights_and_configuration_come_back_as_they_went() {
    for model in models() {
        let layers = distinct_weights(&model);
        let file = file(&model, &layers);
        assert_eq!(import_safetensors(&model, &file).expect("its own file"), layers);
        assert_eq!(parse_config(&config_json(&model)).expect("its own text"), model);
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_its_tensor() {
    let model = model(Family::Llama);
    let layers: Vec<_> = model_layers(&model).iter().map(|spec| initial_weights(spec, 1)).collect();
    let file = file(&model, &layers);
    let wider = ModelConfig { vocabulary: 12, ..model.clone() };
    let error = import_safetensors(&wider, &file).expect_err("one row is missing");
    assert!(matches!(&error, ImportError::Shape { name, .. } if name.contains("embed")));
    let deeper = ModelConfig { blocks: 3, ..model.clone() };
    let error = import_safetensors(&deeper, &file).expect_err("a block is missing");
    assert!(matches!(&error, ImportError::Missing { name } if name.contains("layers.2")));
    // More than any memory holds, and refused before any is allocated.
    let huge = ModelConfig { width: 1 << 24, vocabulary: 1 << 24, ..model.clone() };
    let error = import_safetensors(&huge, &file).expect_err("no file is as large");
    assert!(matches!(&error, ImportError::Shape { name, .. } if name.contains("embed")));
    let error = import_safetensors(&model, &file[..40]).expect_err("cut short");
    let is_short = |error: &HeaderError| matches!(error, HeaderError::Length { .. });
    assert!(matches!(&error, ImportError::Format { error, .. } if is_short(error)), "{error}");
    let error = import_safetensors(&model, &file[..file.len() - 1]).expect_err("cut short");
    let is_short = |error: &HeaderError| matches!(error, HeaderError::Size { .. });
    assert!(matches!(&error, ImportError::Format { error, .. } if is_short(error)), "{error}");
}

/// A file of these tensors, each as bytes of its type.
fn file_of(tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name.clone(), view.expect("a tensor is as long as its shape"))
    });
    serialize(views, None).expect("views are complete")
}

fn f32_tensor(tensor: NamedTensor) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    let bytes = tensor.floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    (tensor.name, Dtype::F32, tensor.shape, bytes)
}

/// The file of a model after `change` of its tensors.
fn changed(
    model: &ModelConfig,
    change: impl Fn(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>),
) -> Result<Vec<Vec<f32>>, ImportError> {
    let layers = distinct_weights(model);
    let mut tensors: Vec<_> = to_named(model, &layers).into_iter().map(f32_tensor).collect();
    change(&mut tensors);
    let read = import_safetensors(model, &file_of(&tensors));
    if let Ok(read) = &read {
        assert!(*read == layers, "what is read is what was written");
    }
    read
}

#[test]
fn names_without_the_model_and_buffers_are_read_past() {
    let gpt2 = |name: &str, model: &ModelConfig| {
        changed(model, |tensors| {
            tensors.iter_mut().for_each(|tensor| {
                tensor.0 = tensor.0.trim_start_matches("transformer.").to_owned();
            });
            tensors.push((name.to_owned(), Dtype::U8, vec![2, 2], vec![0; 4]));
        })
    };
    let tied = ModelConfig { tied: true, ..model(Family::Gpt2) };
    for model in [tied, model(Family::Gpt2)] {
        gpt2("h.1.attn.bias", &model).expect("a mask");
        gpt2("h.0.attn.masked_bias", &model).expect("a mask");
        for extra in ["h.2.attn.bias", "h.1.attn.q_norm.weight", "attn.bias", "wte.bias"] {
            let error = gpt2(extra, &model).expect_err("nothing of the model");
            assert!(matches!(&error, ImportError::Extra { name } if name == extra), "{error}");
        }
    }
    let llama = |name: &str| {
        changed(&model(Family::Llama), |tensors| {
            tensors.push((name.to_owned(), Dtype::F32, vec![2], vec![0; 8]));
        })
    };
    llama("model.layers.1.self_attn.rotary_emb.inv_freq").expect("frequencies");
    llama("model.rotary_emb.inv_freq").expect("frequencies");
    let error = llama("model.layers.1.self_attn.q_norm.weight").expect_err("no such norm");
    assert!(error.to_string().contains("model.layers.1.self_attn.q_norm.weight"), "{error}");
}

#[test]
fn a_tied_head_that_is_in_the_file_as_well_has_to_be_the_embedding() {
    let model = ModelConfig { tied: true, ..model(Family::Llama) };
    let with_head = |change: fn(&mut Vec<u8>)| {
        changed(&model, |tensors| {
            let embedding = tensors.iter().find(|tensor| tensor.0.contains("embed_tokens"));
            let mut head = embedding.expect("an embedding").clone();
            head.0 = "lm_head.weight".to_owned();
            change(&mut head.3);
            tensors.push(head);
        })
    };
    with_head(|_| ()).expect("the same");
    let error = with_head(|bytes| bytes[5] ^= 1).expect_err("another");
    assert!(matches!(error, ImportError::Untied { .. }), "{error}");
    let missing = changed(&self::model(Family::Llama), |tensors| {
        tensors.retain(|tensor| tensor.0 != "lm_head.weight");
    });
    let error = missing.expect_err("an untied model has a head of its own");
    assert!(matches!(&error, ImportError::Missing { name } if name == "lm_head.weight"), "{error}");
}

/// Small whole numbers are the same in all three types.
#[test]
fn halves_are_read_exactly_and_other_types_refused() {
    // Numbers from 1 to 2047.
    let f16_of = |x: f32| (((x.to_bits() >> 23) - 112) << 10 | x.to_bits() >> 13 & 0x3ff) as u16;
    let half = |dtype: Dtype, x: f32| {
        if dtype == Dtype::BF16 { (x.to_bits() >> 16) as u16 } else { f16_of(x) }
    };
    for model in [model(Family::Gpt2), model(Family::Llama)] {
        let bounded = |dtype| {
            let limit = if dtype == Dtype::BF16 { 256.0 } else { 2048.0 };
            let small = |x: &f32| x % (limit - 1.0) + 1.0;
            let layers: Vec<Vec<f32>> = distinct_weights(&model)
                .iter()
                .map(|layer| layer.iter().map(small).collect())
                .collect();
            let tensors: Vec<_> = to_named(&model, &layers)
                .into_iter()
                .map(|tensor| {
                    let halves = tensor.floats.iter().map(|x| half(dtype, *x).to_le_bytes());
                    (tensor.name, dtype, tensor.shape, halves.flatten().collect())
                })
                .collect();
            assert!(import_safetensors(&model, &file_of(&tensors)).expect("halves") == layers);
        };
        bounded(Dtype::F16);
        bounded(Dtype::BF16);
    }
    let error = changed(&model(Family::Llama), |tensors| {
        tensors[0].1 = Dtype::I32;
    });
    assert!(matches!(error, Err(ImportError::Type { found: Dtype::I32, .. })));
}

#[test]
fn a_weight_that_is_no_number_is_refused_with_its_tensor() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for model in models() {
            let error = changed(&model, |tensors| {
                tensors[3].3[4..8].copy_from_slice(&bad.to_le_bytes());
            });
            let expected = to_named(&model, &distinct_weights(&model))[3].name.clone();
            match error {
                Err(ImportError::NotFinite { name, index: 1, found }) => {
                    assert_eq!(name, expected);
                    assert_eq!(found.to_bits(), bad.to_bits());
                }
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}

#[test]
fn any_number_of_threads_reads_the_same_and_reports_the_first_fault() {
    for model in models() {
        let layers = distinct_weights(&model);
        let mut tensors: Vec<_> = to_named(&model, &layers).into_iter().map(f32_tensor).collect();
        let whole = file_of(&tensors);
        for (.., bytes) in &mut tensors {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        let damaged = file_of(&tensors);
        let faults = (1..=4).map(|threads| {
            let host = HostThreads::new(threads).expect("threads");
            let read = |bytes: &[u8]| {
                let file = WeightFile { name: "it".to_owned(), bytes: &bytes };
                import_files(&model, &[file], None, &host)
            };
            assert!(read(&whole).expect("it is whole") == layers, "{threads} threads");
            read(&damaged).expect_err("it is damaged").to_string()
        });
        let faults: Vec<String> = faults.collect();
        assert!(faults.iter().all(|fault| *fault == faults[0]), "{faults:?}");
    }
}

/// Sizes around those of a tile, matrices of which several lie side by side in the file, and rows that come a few
/// at a time.
#[test]
fn tiles_give_what_single_elements_do() {
    let sizes = [1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 130];
    for (own_rows, columns) in sizes.iter().flat_map(|rows| sizes.map(|columns| (*rows, columns))) {
        for (first, behind) in [(0, 0), (3, 0), (17, 5)] {
            let width = first + own_rows + behind;
            // No two are equal, and none is zero.
            let from: Vec<f32> = (1..=columns * width).map(|x| x as f32).collect();
            let part = TensorPart {
                layer: 0,
                range: 0..own_rows * columns,
                shape: [own_rows, columns],
                is_transposed: true,
                first_row: first,
                is_shared: false,
            };
            let expected: Vec<f32> =
                { (0..own_rows).flat_map(|row| (0..columns).map(move |at| (row, at))) }
                    .map(|(row, column)| from[column * width + first + row])
                    .collect();
            for step in [1, 7, 64, columns] {
                let mut found = vec![0.0; expected.len()];
                for start in (0..columns).step_by(step) {
                    let taken = start..columns.min(start + step);
                    part.put(&taken, width, &from[start * width..], &mut found);
                }
                assert!(found == expected, "{own_rows} x {columns} from {first}, {step} at once");
            }
        }
    }
}

/// An embedding that several threads read, run by run.
#[test]
fn runs_of_a_tensor_are_read_side_by_side_and_the_first_fault_is_reported() {
    let vocabulary = (2 * RUN_ELEMENTS / 6 + 5) as u32;
    for (family, tied) in [(Family::Gpt2, true), (Family::Llama, false)] {
        let model = ModelConfig { vocabulary, tied, blocks: 1, ..model(family) };
        let layers = distinct_weights(&model);
        let whole = file(&model, &layers);
        let mut damaged = layers.clone();
        for index in [2 * RUN_ELEMENTS + 1, RUN_ELEMENTS + 3, RUN_ELEMENTS + 4] {
            damaged[0][index] = f32::INFINITY;
        }
        let damaged = file(&model, &damaged);
        for threads in 1..=3 {
            let host = HostThreads::new(threads).expect("threads");
            let read = |bytes: &[u8]| {
                let file = WeightFile { name: "it".to_owned(), bytes: &bytes };
                import_files(&model, &[file], None, &host)
            };
            assert!(read(&whole).expect("it is whole") == layers, "{family:?}, {threads} threads");
            let fault = read(&damaged).expect_err("it is damaged");
            let is_first = |index: usize| index == RUN_ELEMENTS + 3;
            assert!(
                matches!(&fault, ImportError::NotFinite { index, .. } if is_first(*index)),
                "{fault}"
            );
        }
    }
}

#[test]
fn tensors_may_lie_in_several_files_each_where_the_index_says() {
    let model = featured(AttentionBias::Qkv, false, false);
    let layers = distinct_weights(&model);
    let tensors: Vec<_> = to_named(&model, &layers).into_iter().map(f32_tensor).collect();
    let (front, back) = tensors.split_at(tensors.len() / 2);
    let names = |tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)], file: &str| {
        let names = tensors.iter().map(|tensor| format!("{:?}: {file:?}", tensor.0));
        names.collect::<Vec<_>>()
    };
    let read = |entries: Vec<String>, second: &[(String, Dtype, Vec<usize>, Vec<u8>)]| {
        let index = ShardIndex::parse(&format!("{{\"weight_map\": {{{}}}}}", entries.join(", ")));
        let bytes = [file_of(front), file_of(second)];
        let bytes = bytes.each_ref().map(|bytes| &bytes[..]);
        let file = |at: usize| WeightFile { name: at.to_string(), bytes: &bytes[at] };
        let host = HostThreads::new(2).expect("threads");
        import_files(&model, &[file(0), file(1)], Some(&index.expect("an index")), &host)
    };
    let entries = [names(front, "0"), names(back, "1")].concat();
    assert!(read(entries.clone(), back).expect("all of them") == layers);
    let error = read([names(front, "0"), names(back, "0")].concat(), back);
    assert!(matches!(error, Err(ImportError::Misplaced { .. })));
    let twice = [back, &front[..1]].concat();
    assert!(matches!(read(entries.clone(), &twice), Err(ImportError::Twice { .. })));
    assert!(matches!(read(entries, &back[1..]), Err(ImportError::Misplaced { .. })));
}

/// The layers that a file of initial weights gives a model, each read alone.
fn stored_layers(model: &ModelConfig, file: Vec<u8>) -> Result<Vec<Vec<f32>>, ImportError> {
    let stored = StoredWeights::open(model, 7, Box::new(file))?;
    let read = |spec: &LayerSpec| {
        let mut floats = vec![0.0; spec.len()];
        stored.read_layer(&HostThreads::one(), spec, &mut floats).expect("it was read before");
        floats
    };
    Ok(model_layers(model).iter().map(read).collect())
}

fn initial_file(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<u8> {
    let mut file = Vec::new();
    write_initial(model, layers, &mut file).expect("memory");
    file
}

/// `layers` with room for the adapters of `adapted`, drawn from a seed.
fn with_adapters(adapted: &ModelConfig, layers: &[Vec<f32>], seed: u64) -> Vec<Vec<f32>> {
    let empty = model_layers(adapted).into_iter().map(|spec| vec![0.0; spec.len()]);
    let mut all: Vec<Vec<f32>> = empty.collect();
    for (to, from) in all.iter_mut().zip(layers) {
        to[..from.len()].copy_from_slice(from);
    }
    draw_adapters(adapted, seed, &mut all);
    all
}

#[test]
fn each_stored_layer_alone_is_that_of_the_model() {
    for model in models() {
        let lora = LoraSettings {
            rank: 2,
            alpha: 4.0,
            scaling: LoraScaling::Standard,
            init: LoraInit::Kaiming,
            targets: vec!["*".to_owned()],
        };
        let adapted = lora.adapt(&model).expect("it has such layers");
        let layers = distinct_weights(&model);
        let plain = initial_file(&model, &layers);
        assert_eq!(stored_layers(&model, plain.clone()).expect("its own"), layers);
        // Adapters that the file has not are drawn, and those that it has are read.
        let drawn = with_adapters(&adapted, &layers, 7);
        assert_eq!(stored_layers(&adapted, plain.clone()).expect("its own"), drawn);
        let given = with_adapters(&adapted, &layers, 8);
        let file = initial_file(&adapted, &given);
        assert_eq!(stored_layers(&adapted, file).expect("its own"), given);
        let mut cut = plain.clone();
        cut.truncate(plain.len() - 4);
        assert!(matches!(stored_layers(&model, cut), Err(ImportError::Format { .. })));
        let other = ModelConfig { blocks: 1, ..model };
        assert!(matches!(stored_layers(&other, plain), Err(ImportError::Extra { .. })));
    }
}
