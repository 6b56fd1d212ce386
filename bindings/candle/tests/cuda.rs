//! Both operators and the layer on a GPU, against `f64` on the CPU, in every dtype, with all gradients.
//!
//! Built with the feature `cuda`; `cargo test --features cuda -- --ignored` runs them.

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
use msdeform_candle::{
    Config, Error, MSDeformAttn, Offsets, ms_deform_attn, ms_deform_attn_from_offsets,
};
use support::{assert_close, elements, random};

const LEVELS: [(usize, usize); 3] = [(19, 27), (10, 14), (5, 7)];
const PIXELS: usize = 19 * 27 + 10 * 14 + 5 * 7;
const SAMPLES: [usize; 5] = [2, 37, 8, 3, 4];

fn gpu() -> Device {
    Device::new_cuda(0).expect("a GPU")
}

/// What is promised of a format.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => msdeform::DType::F16,
        DType::BF16 => msdeform::DType::Bf16,
        _ => msdeform::DType::F32,
    }
    .rel_l2_bound()
}

/// Values, then positions and shares of samples: locations and weights, or offsets and logits.
fn inputs(value: DType, samples: DType, offsets: bool) -> Result<Vec<Tensor>> {
    let (scale, at) = if offsets { (2.0, 0.1) } else { (0.6, 0.5) };
    Ok(vec![
        random(1, &[2, PIXELS, 8, 32], 1.0, 0.0, value)?,
        random(2, &[&SAMPLES[..], &[2]].concat(), scale, at, samples)?,
        random(3, &SAMPLES, 0.5, 0.5, samples)?,
    ])
}

fn references(components: usize) -> Result<Tensor> {
    random(6, &[2, 37, 3, components], 0.3, 0.5, DType::F32)
}

/// Compares the GPU with the CPU. The GPU gets the tensors as they are, the CPU gets the same numbers in `f64`. The output
/// and every gradient must agree within the bound of the dtype.
fn check(tensors: &[Tensor], call: impl Fn(&[Var]) -> Result<Tensor>) -> Result<()> {
    let format = tensors[0].dtype();
    let run = |tensors: Vec<Tensor>| -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
        let variables: Vec<Var> = tensors.iter().map(Var::from_tensor).collect::<Result<_>>()?;
        let output = call(&variables)?;
        // The same numbers in both: rounded to the format of the call first.
        let upstream = random(9, output.dims(), 1.0, 0.0, format)?.to_dtype(output.dtype())?;
        let upstream = upstream.to_device(output.device())?;
        let gradients = (&output * upstream)?.sum_all()?.backward()?;
        let gradients = variables.iter().map(|variable| {
            let gradient = gradients.get(variable).unwrap();
            assert_eq!((gradient.dims(), gradient.dtype()), (variable.dims(), variable.dtype()));
            elements(gradient)
        });
        Ok((elements(&output), gradients.collect()))
    };
    let on_gpu = tensors.iter().map(|tensor| tensor.to_device(&gpu())).collect::<Result<_>>()?;
    let in_f64 = tensors.iter().map(|tensor| tensor.to_dtype(DType::F64)).collect::<Result<_>>()?;
    let ((output, gradients), (expected, expected_gradients)) = (run(on_gpu)?, run(in_f64)?);
    assert_close("output", &output, &expected, bound(format));
    for (at, (found, expected)) in gradients.iter().zip(&expected_gradients).enumerate() {
        assert_close(&format!("gradient {at}"), found, expected, bound(tensors[at].dtype()));
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn output_and_gradients_are_right_in_every_format() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for samples in [dtype, DType::F32] {
            check(&inputs(dtype, samples, false)?, |x| {
                Ok(ms_deform_attn(&x[0], LEVELS, &x[1], &x[2])?)
            })?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn from_offsets_output_and_all_four_gradients_are_right() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (components, rule) in [(2, Offsets::from_points()), (4, Offsets::from_boxes())] {
            let mut tensors = inputs(dtype, dtype, true)?;
            tensors.push(references(components)?);
            check(&tensors, |x| {
                Ok(ms_deform_attn_from_offsets(&x[0], LEVELS, &x[3], &x[1], &x[2], rule)?)
            })?;
            // Constants, which are another way through.
            let around = tensors.pop().unwrap();
            check(&tensors, |x| {
                let around = around.to_device(x[0].device())?;
                let around =
                    if x[0].dtype() == DType::F64 { around.to_dtype(DType::F64)? } else { around };
                Ok(ms_deform_attn_from_offsets(&x[0], LEVELS, &around, &x[1], &x[2], rule)?)
            })?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn tensors_may_lie_anywhere() -> Result<()> {
    let gpu = gpu();
    for dtype in [DType::F32, DType::F16] {
        // Queries first, and more of them than are attended with.
        let lying = |seed: u64, rest: &[usize], scale: f64, at: f64| -> Result<Var> {
            let shape = [&[41, 2], rest].concat();
            Var::from_tensor(&random(seed, &shape, scale, at, dtype)?.to_device(&gpu)?)
        };
        let around = lying(6, &[3, 4], 0.3, 0.5)?;
        let (offsets, logits) = (lying(4, &[8, 12, 2], 2.0, 0.1)?, lying(5, &[8, 12], 2.0, 0.0)?);
        let value = random(1, &[2, 8, PIXELS, 32], 1.0, 0.0, dtype)?.to_device(&gpu)?;
        let value = value.transpose(1, 2)?;
        let call = |tracked: bool, copied: bool| -> Result<Tensor> {
            let view = |x: &Tensor| {
                let view = x.narrow(0, 3, 37)?.transpose(0, 1)?;
                assert!(!view.is_contiguous());
                if copied { view.contiguous() } else { Ok(view) }
            };
            let around = if tracked { around.as_tensor() } else { &around.detach() };
            let (around, offsets, logits) = (view(around)?, view(&offsets)?, view(&logits)?);
            let rule = Offsets::from_boxes();
            Ok(ms_deform_attn_from_offsets(&value, LEVELS, &around, &offsets, &logits, rule)?)
        };
        for tracked in [false, true] {
            let (found, expected) = (call(tracked, false)?, call(tracked, true)?);
            assert_close("output", &elements(&found), &elements(&expected), bound(dtype));
            let (found, expected) = (found.sqr()?.backward()?, expected.sqr()?.backward()?);
            assert_eq!(found.get(&around).is_some(), tracked);
            for (name, input) in [("offsets", &offsets), ("logits", &logits)] {
                let [found, expected] =
                    [&found, &expected].map(|all| elements(all.get(input).unwrap()));
                assert_close(name, &found, &expected, bound(dtype));
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn references_of_one_image_serve_all() -> Result<()> {
    let mut tensors = inputs(DType::F32, DType::F32, true)?;
    tensors.push(references(2)?.narrow(0, 0, 1)?.contiguous()?);
    check(&tensors, |x| {
        let rule = Offsets::from_points();
        Ok(ms_deform_attn_from_offsets(&x[0], LEVELS, &x[3], &x[1], &x[2], rule)?)
    })
}

#[test]
#[ignore = "needs a GPU"]
fn a_checkpoint_gives_what_transformers_gives() -> Result<()> {
    const OF_TRANSFORMERS: &[u8] = include_bytes!("fixtures/deformable_detr.safetensors");
    let gpu = gpu();
    let all: HashMap<String, Tensor> = safetensors::load_buffer(OF_TRANSFORMERS, &gpu)?;
    let config = Config { d_model: 16, n_heads: 4, n_points: vec![2; 2] };
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 5e-3), (DType::BF16, 4e-2)] {
        let vb = VarBuilder::from_buffered_safetensors(OF_TRANSFORMERS.to_vec(), dtype, &gpu)?;
        let module = MSDeformAttn::new(&config, vb.pp("self_attn"))?;
        let input = |name: &str| all[name].to_dtype(dtype);
        for (references, output) in [("points", "output_points"), ("boxes", "output_boxes")] {
            let found = module.forward(
                &input("query")?,
                &input(references)?,
                &input("input_flatten")?,
                [(6, 8), (3, 4)],
                Some(&all["padding_mask"]),
            )?;
            assert_close(output, &elements(&found), &elements(&all[output]), bound);
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn an_encoder_layer_learns() -> Result<()> {
    let (gpu, levels) = (gpu(), [(6, 8), (3, 4)]);
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &gpu);
    let config = Config { d_model: 16, n_heads: 4, n_points: vec![2; 2] };
    let layer = EncoderLayer::new(&config, 32, vb)?;
    let references = centres(&levels)?.to_device(&gpu)?;
    let shape = [2, references.dim(1)?, 16];
    let on_gpu = |seed, shape: &[usize]| random(seed, shape, 1.0, 0.0, DType::F32)?.to_device(&gpu);
    let (pixels, target) = (on_gpu(1, &shape)?, on_gpu(3, &shape)?);
    let positions = (on_gpu(2, &[1, shape[1], 16])? * 0.3)?;
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-2)?;
    let mut losses = Vec::new();
    for _ in 0..30 {
        let loss = mse(&layer.forward(&pixels, &positions, &references, &levels)?, &target)?;
        losses.push(loss.to_scalar::<f32>()?);
        optimizer.step(&loss.backward()?)?;
    }
    assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn calls_from_many_threads_are_the_same() -> Result<()> {
    let gpu = gpu();
    let tensors: Vec<Tensor> = inputs(DType::F32, DType::F32, false)?
        .iter()
        .map(|tensor| tensor.to_device(&gpu))
        .collect::<Result<_>>()?;
    gpu.synchronize()?;
    let call = || -> Result<Vec<f64>> {
        Ok(elements(&ms_deform_attn(&tensors[0], LEVELS, &tensors[1], &tensors[2])?))
    };
    let expected = call()?;
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..20).map(|_| call().unwrap()).collect::<Vec<_>>()))
            .collect();
        for found in calls.into_iter().flat_map(|call| call.join().unwrap()) {
            assert_eq!(found, expected);
        }
    });
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn tensors_on_two_devices_and_formats_of_the_processor_are_refused() -> Result<()> {
    let (gpu, tensors) = (gpu(), inputs(DType::F32, DType::F32, false)?);
    let value = tensors[0].to_device(&gpu)?;
    let error = ms_deform_attn(&value, LEVELS, &tensors[1], &tensors[2]).expect_err("two devices");
    assert!(matches!(error, Error::Devices { tensor: "sampling_locations", .. }), "{error}");
    let in_f64: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| tensor.to_dtype(DType::F64)?.to_device(&gpu))
        .collect::<Result<_>>()?;
    let error = ms_deform_attn(&in_f64[0], LEVELS, &in_f64[1], &in_f64[2]).expect_err("f64");
    assert_eq!(
        error.to_string(),
        "`value` is F64, expected F32 or F16 or BF16; convert it with `to_dtype`"
    );
    Ok(())
}
