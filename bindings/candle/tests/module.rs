//! The layer of Deformable-DETR: what it computes, what it is made of, and a layer of an encoder that is trained.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may fail, and helpers of tests too"
)]

#[path = "../examples/encoder_layer/layer.rs"]
mod layer;
mod support;

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var, safetensors};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap, loss::mse};
use layer::{EncoderLayer, centres};
use msdeform_candle::{Config, Error, MSDeformAttn};
use support::{assert_close, elements, random};

/// Parameters, inputs and outputs of the module of `transformers`; made by `tests/fixtures/deformable_detr.py`.
const OF_TRANSFORMERS: &[u8] = include_bytes!("fixtures/deformable_detr.safetensors");

const LEVELS: [(usize, usize); 2] = [(6, 8), (3, 4)];

fn config() -> Config {
    Config { d_model: 16, n_heads: 4, n_points: vec![2; 2] }
}

fn of_transformers(name: &str) -> Tensor {
    let all: HashMap<String, Tensor> =
        safetensors::load_buffer(OF_TRANSFORMERS, &Device::Cpu).unwrap();
    all[name].clone()
}

fn module(dtype: DType) -> Result<MSDeformAttn> {
    let vb = VarBuilder::from_buffered_safetensors(OF_TRANSFORMERS.to_vec(), dtype, &Device::Cpu)?;
    Ok(MSDeformAttn::new(&config(), vb.pp("self_attn"))?)
}

#[test]
fn a_checkpoint_loads_and_gives_what_transformers_gives() -> Result<()> {
    for (dtype, bound) in
        [(DType::F32, 1e-5), (DType::F64, 1e-5), (DType::F16, 5e-3), (DType::BF16, 4e-2)]
    {
        let input = |name: &str| of_transformers(name).to_dtype(dtype);
        let (query, pixels) = (input("query")?, input("input_flatten")?);
        let mask = of_transformers("padding_mask");
        for (references, output) in [("points", "output_points"), ("boxes", "output_boxes")] {
            let references = input(references)?;
            let found =
                module(dtype)?.forward(&query, &references, &pixels, LEVELS, Some(&mask))?;
            assert_eq!(found.dtype(), dtype);
            assert_close(output, &elements(&found), &elements(&of_transformers(output)), bound);
        }
    }
    Ok(())
}

#[test]
fn padding_counts_as_zero_whatever_it_holds() -> Result<()> {
    let (query, references) = (of_transformers("query"), of_transformers("points"));
    let (pixels, mask) = (of_transformers("input_flatten"), of_transformers("padding_mask"));
    let module = module(DType::F32)?;
    let expected = module.forward(&query, &references, &pixels, LEVELS, Some(&mask))?;
    let nan = Tensor::full(f32::NAN, pixels.shape(), &Device::Cpu)?;
    let padded = mask.unsqueeze(2)?.broadcast_as(pixels.shape())?;
    let pixels = Var::from_tensor(&padded.where_cond(&nan, &pixels)?)?;
    let found = module.forward(&query, &references, &pixels, LEVELS, Some(&mask))?;
    assert_eq!(elements(&found), elements(&expected));
    Ok(())
}

#[test]
fn a_new_module_looks_around_its_reference() -> Result<()> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let config = Config { d_model: 16, n_heads: 4, n_points: vec![2, 1] };
    MSDeformAttn::new(&config, vb.pp("attn"))?;
    let names = ["sampling_offsets", "attention_weights", "value_proj", "output_proj"];
    let mut expected: Vec<String> = names
        .iter()
        .flat_map(|name| ["weight", "bias"].map(|part| format!("attn.{name}.{part}")))
        .collect();
    let of = |name: &str| variables.data().lock().unwrap()[&format!("attn.{name}")].clone();
    let mut found: Vec<String> = variables.data().lock().unwrap().keys().cloned().collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let bias = elements(&of("sampling_offsets.bias"));
    // Right, down, left, up: two steps on the first level, one on the second.
    let rounded: Vec<f64> = bias.iter().map(|x| (x * 1e6).round() / 1e6 + 0.0).collect();
    let directions = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]];
    let expected: Vec<f64> = directions
        .iter()
        .flat_map(|[x, y]| [1.0, 2.0, 1.0].map(|step| [x * step + 0.0, y * step + 0.0]))
        .flatten()
        .collect();
    assert_eq!(rounded, expected);
    for name in [
        "sampling_offsets.weight",
        "attention_weights.weight",
        "attention_weights.bias",
        "output_proj.bias",
    ] {
        assert!(elements(&of(name)).iter().all(|&x| x == 0.0), "{name}");
    }
    let bound = (3f64 / 16.0).sqrt();
    let weight = elements(&of("value_proj.weight"));
    assert!(
        weight.iter().all(|x| x.abs() <= bound) && weight.iter().any(|x| x.abs() > bound / 2.0)
    );

    // Parameters that are there already stay what they are.
    of("sampling_offsets.bias").set(&Tensor::full(7f32, 4 * 3 * 2, &Device::Cpu)?)?;
    MSDeformAttn::new(&config, vb.pp("attn"))?;
    assert!(elements(&of("sampling_offsets.bias")).iter().all(|&x| x == 7.0));
    Ok(())
}

#[test]
fn an_encoder_layer_learns_and_comes_back_from_its_file() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let layer = EncoderLayer::new(&config(), 32, vb)?;
    let references = centres(&LEVELS)?;
    let shape = [2, references.dim(1)?, 16];
    let pixels = random(1, &shape, 1.0, 0.0, DType::F32)?;
    let positions = random(2, &[1, shape[1], 16], 0.3, 0.0, DType::F32)?;
    let target = random(3, &shape, 1.0, 0.0, DType::F32)?;
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-2)?;
    let mut losses = Vec::new();
    for step in 0..30 {
        let output = layer.forward(&pixels, &positions, &references, &LEVELS)?;
        let loss = mse(&output, &target)?;
        losses.push(loss.to_scalar::<f32>()?);
        let gradients = loss.backward()?;
        for (name, var) in variables.data().lock().unwrap().iter() {
            let gradient = gradients.get(var).map(elements).unwrap_or_default();
            assert_eq!(gradient.len(), var.elem_count(), "step {step}: {name} has no gradient");
            assert!(gradient.iter().all(|x| x.is_finite()), "step {step}: {name}");
            assert!(gradient.iter().any(|&x| x != 0.0), "step {step}: {name} is not used");
        }
        optimizer.step(&gradients)?;
    }
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < 0.7 * first, "{losses:?}");

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("layer.safetensors");
    variables.save(&file)?;
    let vb = VarBuilder::from_buffered_safetensors(std::fs::read(&file)?, DType::F32, &device)?;
    let loaded = EncoderLayer::new(&config(), 32, vb)?;
    let outputs = [&layer, &loaded]
        .map(|layer| layer.forward(&pixels, &positions, &references, &LEVELS).unwrap());
    assert_eq!(elements(&outputs[0]), elements(&outputs[1]));
    Ok(())
}

#[test]
fn sizes_and_tensors_that_do_not_fit_are_refused_by_name() -> Result<()> {
    let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    for (d_model, n_heads) in [(16, 3), (16, 0), (0, 4)] {
        let config = Config { d_model, n_heads, n_points: vec![1] };
        let error = MSDeformAttn::new(&config, vb.clone()).expect_err("sizes that do not fit");
        assert!(matches!(error, Error::Configuration { .. }));
    }
    let endless = Config { n_points: vec![usize::MAX, 2], ..config() };
    assert!(matches!(MSDeformAttn::new(&endless, vb), Err(Error::Configuration { .. })));
    let missing = VarBuilder::from_tensors(HashMap::new(), DType::F32, &Device::Cpu);
    let error = MSDeformAttn::new(&config(), missing.pp("attn")).expect_err("no parameters");
    // Behind it candle may say where that was.
    assert!(error.to_string().starts_with("cannot find tensor attn.sampling_offsets.weight"));

    let module = module(DType::F32)?;
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let right = || {
        [
            (&[2, 5, 16][..], DType::F32),
            (&[2, 5, 2, 2], DType::F32),
            (&[2, 60, 16], DType::F32),
            (&[2, 60], DType::U8),
        ]
    };
    let call = |given: [(&[usize], DType); 4]| {
        let [query, references, pixels, mask] = given.map(|(shape, dtype)| zeros(shape, dtype));
        module.forward(&query, &references, &pixels, LEVELS, Some(&mask))
    };
    assert_eq!(call(right())?.dims(), [2, 5, 16]);
    for (at, shape, dtype, expected) in [
        (
            0,
            &[2, 5, 8][..],
            DType::F32,
            "`query` has shape [2, 5, 8], expected [batch, queries, 16]",
        ),
        (0, &[5, 16], DType::F32, "`query` has shape [5, 16], expected [batch, queries, 16]"),
        (
            1,
            &[2, 5, 3, 2],
            DType::F32,
            "`reference_points` has shape [2, 5, 3, 2], expected [2, 5, 2 or 1, 2 or 4]",
        ),
        (1, &[2, 5, 2, 3], DType::F32, "`reference_points` has shape"),
        (
            2,
            &[1, 60, 16],
            DType::F32,
            "`input_flatten` has shape [1, 60, 16], expected [2, pixels, 16]",
        ),
        (2, &[2, 61, 16], DType::F32, "`padding_mask` has shape [2, 60], expected [2, 61]"),
        (3, &[2, 60], DType::F32, "`padding_mask` is F32, expected U8"),
        (3, &[60, 2], DType::U8, "`padding_mask` has shape [60, 2], expected [2, 60]"),
    ] {
        let mut given = right();
        given[at] = (shape, dtype);
        let words = call(given).expect_err("tensors that do not fit").to_string();
        assert!(words.starts_with(expected), "{words}");
    }
    let [query, references, pixels, _] = right().map(|(shape, dtype)| zeros(shape, dtype));
    let words = module.forward(&query, &references, &pixels, [(6, 10)], None);
    assert!(words.expect_err("one level").to_string().contains("for 2 levels, but 1 are given"));
    Ok(())
}
