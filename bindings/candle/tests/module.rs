//! The layer of Deformable-DETR: what it computes, what it is made of, and a layer of an encoder that is trained.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may fail, and helpers of tests too"
)]

mod support;

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use msdeform_candle::{Config, Error, MSDeformAttn};
use support::elements;
use support::suite::{OF_TRANSFORMERS_LEVELS as LEVELS, config, of_transformers};

support::suite::test_on!(
    Device::Cpu,
    a_checkpoint_gives_what_transformers_gives,
    an_encoder_layer_learns_and_comes_back_from_its_file,
);

#[test]
fn padding_counts_as_zero_whatever_it_holds() -> Result<()> {
    let (module, all) = of_transformers(&Device::Cpu, DType::F32)?;
    let [query, references, pixels, mask] =
        ["query", "points", "input_flatten", "padding_mask"].map(|name| all[name].clone());
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

    let (module, _) = of_transformers(&Device::Cpu, DType::F32)?;
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
