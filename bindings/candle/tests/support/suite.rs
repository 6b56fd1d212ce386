//! What must hold on every device: `operator.rs`, `module.rs` and `cuda.rs` run it.

#[path = "../../examples/encoder_layer/layer.rs"]
mod layer;

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var, safetensors};
use candle_nn::ops::softmax;
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap, loss::mse};
use msdeform::Role;
use msdeform_candle::{Config, MSDeformAttn, Offsets, ms_deform_attn, ms_deform_attn_from_offsets};

use super::{assert_close, composed, elements, random};
use layer::{EncoderLayer, centres};

pub const LEVELS: [(usize, usize); 3] = [(19, 27), (10, 14), (5, 7)];
pub const BATCH: usize = 2;
pub const QUERIES: usize = 37;
const PIXELS: usize = 19 * 27 + 10 * 14 + 5 * 7;
const POINTS: usize = 4;

/// Parameters, inputs and outputs of the module of `transformers`; made by `tests/fixtures/deformable_detr.py`.
const OF_TRANSFORMERS: &[u8] = include_bytes!("../fixtures/deformable_detr.safetensors");
pub const OF_TRANSFORMERS_LEVELS: [(usize, usize); 2] = [(6, 8), (3, 4)];

const PLAIN: [Role; 3] = [Role::Value, Role::Locations, Role::Weights];
const FROM_OFFSETS: [Role; 4] = [Role::Value, Role::References, Role::Offsets, Role::Logits];

/// A test for each function of the suite, on a device.
macro_rules! test_on {
    ($device:expr, $($(#[$attribute:meta])* $name:ident),* $(,)?) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() -> candle_core::Result<()> {
            support::suite::$name(&$device)
        }
    )*};
}
#[allow(unused_imports, reason = "every test binary uses a part of it")]
pub(crate) use test_on;

/// What is promised of a dtype.
pub fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => msdeform::DType::F16,
        DType::BF16 => msdeform::DType::Bf16,
        DType::F64 => msdeform::DType::F64,
        _ => msdeform::DType::F32,
    }
    .rel_l2_bound()
}

fn dtypes(device: &Device) -> Vec<DType> {
    let mut dtypes = vec![DType::F32, DType::F16, DType::BF16];
    dtypes.extend(device.is_cpu().then_some(DType::F64));
    dtypes
}

/// Heads and channels: those that the kernels of a GPU are made for, and others for a CPU.
fn heads(device: &Device) -> [usize; 2] {
    if device.is_cpu() { [3, 8] } else { [8, 32] }
}

/// Inputs of a call on a device. Some samples lie outside of their level.
pub fn inputs(device: &Device, roles: &[(Role, DType)], boxes: bool) -> Result<Vec<Tensor>> {
    let [heads, channels] = heads(device);
    let samples = [BATCH, QUERIES, heads, LEVELS.len(), POINTS];
    let input = |&(role, dtype): &(Role, DType)| {
        let tensor = match role {
            Role::Value => random(1, &[BATCH, PIXELS, heads, channels], 1.0, 0.0, dtype),
            Role::Locations => random(2, &[&samples[..], &[2]].concat(), 0.6, 0.5, dtype),
            Role::Weights => random(3, &samples, 0.5, 0.5, dtype),
            Role::Offsets => random(4, &[&samples[..], &[2]].concat(), 2.0, 0.1, dtype),
            Role::Logits => random(5, &samples, 2.0, 0.0, dtype),
            _ => {
                let components = if boxes { 4 } else { 2 };
                random(6, &[BATCH, QUERIES, LEVELS.len(), components], 0.3, 0.5, dtype)
            }
        };
        tensor?.to_device(device)
    };
    roles.iter().map(input).collect()
}

pub fn plain(device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
    inputs(device, &PLAIN.map(|role| (role, dtype)), false)
}

/// References are `F32`, or `F64` in a call of that dtype.
fn from_offsets(device: &Device, dtype: DType, boxes: bool) -> Result<Vec<Tensor>> {
    let references = if dtype == DType::F64 { dtype } else { DType::F32 };
    let dtype_of = |role| if role == Role::References { references } else { dtype };
    inputs(device, &FROM_OFFSETS.map(|role| (role, dtype_of(role))), boxes)
}

/// The operator that reads so many tensors.
pub fn attend(x: &[Tensor]) -> Result<Tensor> {
    match x {
        [value, locations, weights] => Ok(ms_deform_attn(value, LEVELS, locations, weights)?),
        [value, references, offsets, logits] => {
            let has_boxes = references.dim(3)? == 4;
            let rule = if has_boxes { Offsets::from_boxes() } else { Offsets::from_points() };
            Ok(ms_deform_attn_from_offsets(value, LEVELS, references, offsets, logits, rule)?)
        }
        _ => candle_core::bail!("no operator reads {} tensors", x.len()),
    }
}

/// The same in candle's own operations.
fn composed_attend(x: &[Tensor]) -> Result<Tensor> {
    let [value, references, offsets, logits] = x else {
        return composed(&x[0], &LEVELS, &x[1], &x[2]);
    };
    let around = references.unsqueeze(2)?.unsqueeze(4)?;
    let scale = match around.dim(5)? {
        4 => (around.narrow(5, 2, 2)? * (0.5 / POINTS as f64))?,
        _ => {
            let pixel = |(h, w): (usize, usize)| [1.0 / w as f64, 1.0 / h as f64];
            let pixels = LEVELS.map(pixel).concat();
            Tensor::from_vec(pixels, (1, 1, 1, LEVELS.len(), 1, 2), value.device())?
        }
    };
    let locations = offsets.broadcast_mul(&scale)?.broadcast_add(&around.narrow(5, 0, 2)?)?;
    let weights = softmax(&logits.flatten_from(3)?, 3)?.reshape(logits.shape())?;
    composed(value, &LEVELS, &locations, &weights)
}

/// Holds the output and every gradient against candle's own operations in `F64`, on the same stored numbers. Only the inputs
/// that are tracked have gradients.
fn check(inputs: &[Tensor], is_tracked: impl Fn(usize) -> bool) -> Result<()> {
    type Results = (Vec<f64>, Vec<Option<Vec<f64>>>);
    let format = inputs[0].dtype();
    let run = |of: Vec<Tensor>, call: fn(&[Tensor]) -> Result<Tensor>| -> Result<Results> {
        let variables: Vec<Var> = of.iter().map(Var::from_tensor).collect::<Result<_>>()?;
        let given = |(at, x): (usize, &Var)| {
            if is_tracked(at) { x.as_tensor().clone() } else { x.detach() }
        };
        let given: Vec<Tensor> = variables.iter().enumerate().map(given).collect();
        let output = call(&given)?;
        // The same numbers for both: rounded to the dtype of the call first.
        let upstream = random(9, output.dims(), 1.0, 0.0, format)?.to_dtype(output.dtype())?;
        let upstream = upstream.to_device(output.device())?;
        let all = (&output * upstream)?.sum_all()?.backward()?;
        let gradients = variables.iter().map(|variable| {
            let gradient = all.get(variable)?;
            assert_eq!((gradient.dims(), gradient.dtype()), (variable.dims(), variable.dtype()));
            Some(elements(gradient))
        });
        Ok((elements(&output), gradients.collect()))
    };
    let in_f64 = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let in_f64 = inputs.iter().map(in_f64).collect::<Result<_>>()?;
    let (output, gradients) = run(inputs.to_vec(), attend)?;
    let (expected, expected_gradients) = run(in_f64, composed_attend)?;
    assert_close("output", &output, &expected, bound(format));
    for (at, (found, expected)) in gradients.iter().zip(&expected_gradients).enumerate() {
        assert_eq!((found.is_some(), expected.is_some()), (is_tracked(at), is_tracked(at)));
        if let (Some(found), Some(expected)) = (found, expected) {
            assert_close(&format!("gradient {at}"), found, expected, bound(inputs[at].dtype()));
        }
    }
    Ok(())
}

pub fn output_and_gradients_are_right_in_every_dtype(device: &Device) -> Result<()> {
    for dtype in dtypes(device) {
        check(&plain(device, dtype)?, |_| true)?;
        if dtype != DType::F64 {
            let samples = DType::F32;
            let roles =
                [(Role::Value, dtype), (Role::Locations, samples), (Role::Weights, samples)];
            check(&inputs(device, &roles, false)?, |_| true)?;
        }
    }
    Ok(())
}

/// References that are tracked and those that are not take two ways through.
pub fn from_offsets_output_and_all_four_gradients_are_right(device: &Device) -> Result<()> {
    for dtype in dtypes(device) {
        for boxes in [false, true] {
            let tensors = from_offsets(device, dtype, boxes)?;
            check(&tensors, |_| true)?;
            check(&tensors, |at| at != 1)?;
        }
    }
    Ok(())
}

pub fn only_the_inputs_that_are_tracked_have_gradients(device: &Device) -> Result<()> {
    let tensors = plain(device, DType::F32)?;
    for tracked in 0..3 {
        check(&tensors, |at| at == tracked)?;
    }
    assert!(!attend(&tensors)?.track_op());
    Ok(())
}

pub fn references_of_one_image_or_query_serve_all(device: &Device) -> Result<()> {
    for (images, queries) in [(1, QUERIES), (BATCH, 1), (1, 1)] {
        let mut tensors = from_offsets(device, DType::F32, false)?;
        tensors[1] = tensors[1].narrow(0, 0, images)?.narrow(1, 0, queries)?.contiguous()?;
        check(&tensors, |_| true)?;
        check(&tensors, |at| at != 1)?;
    }
    Ok(())
}

/// A call of views gives what the call of their copies gives, with the gradients: the same bits on a CPU, where sums have one
/// order.
fn check_views(
    variables: &[Var],
    tracked: impl Fn(usize) -> bool,
    view: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    let call = |copied: bool| -> Result<Tensor> {
        let given = |(at, x): (usize, &Var)| {
            let view = if tracked(at) { view(x)? } else { view(&x.detach())? };
            if copied { view.contiguous() } else { Ok(view) }
        };
        attend(&variables.iter().enumerate().map(given).collect::<Result<Vec<_>>>()?)
    };
    let is_same = |what: &str, found: &[f64], expected: &[f64]| {
        if variables[0].device().is_cpu() {
            assert!(expected.iter().any(|&x| x != 0.0));
            assert_eq!(found, expected, "{what}");
        } else {
            assert_close(what, found, expected, bound(variables[0].dtype()));
        }
    };
    let (found, expected) = (call(false)?, call(true)?);
    is_same("output", &elements(&found), &elements(&expected));
    let (found, expected) = (found.sqr()?.backward()?, expected.sqr()?.backward()?);
    for (at, input) in variables.iter().enumerate() {
        match (found.get(input), expected.get(input)) {
            (Some(found), Some(expected)) => {
                is_same(&format!("gradient {at}"), &elements(found), &elements(expected));
            }
            (found, expected) => assert!(found.is_none() && expected.is_none() && !tracked(at)),
        }
    }
    Ok(())
}

pub fn tensors_may_lie_anywhere(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        let tensors = plain(device, dtype)?;
        // In the memory order of another axis first, and in the middle of something larger.
        let turned = tensors.iter().map(|x| x.transpose(1, 2)?.contiguous());
        let turned: Vec<Var> = turned.map(|x| Var::from_tensor(&x?)).collect::<Result<_>>()?;
        check_views(&turned, |_| true, |x| x.transpose(1, 2))?;
        let within = tensors.iter().map(|x| Var::from_tensor(&Tensor::cat(&[x, x, x], 0)?));
        let within: Vec<Var> = within.collect::<Result<_>>()?;
        check_views(&within, |_| true, |x| x.narrow(0, BATCH, BATCH))?;
    }
    Ok(())
}

pub fn images_and_queries_of_references_offsets_and_logits_may_lie_anywhere(
    device: &Device,
) -> Result<()> {
    for dtype in dtypes(device) {
        // Queries first, as in models that are written so, and more of them than are attended with.
        let rows = |x: &Tensor| {
            let first = x.transpose(0, 1)?;
            Var::from_tensor(&Tensor::cat(&[&first, &first], 0)?)
        };
        let mut variables = vec![];
        for (at, x) in
            inputs(device, &FROM_OFFSETS.map(|role| (role, dtype)), true)?.iter().enumerate()
        {
            // Samples of one axis for all levels.
            let x = if at > 1 { x.flatten(3, 4)? } else { x.clone() };
            variables.push(if at > 0 { rows(&x)? } else { Var::from_tensor(&x)? });
        }
        let view = |x: &Tensor| {
            if x.dim(1)? == PIXELS {
                return Ok(x.clone());
            }
            let view = x.narrow(0, 3, QUERIES)?.transpose(0, 1)?;
            assert!(!view.is_contiguous());
            Ok(view)
        };
        for references_are_tracked in [false, true] {
            check_views(&variables, |at| at > 1 || (at == 1 && references_are_tracked), view)?;
        }
    }
    Ok(())
}

pub fn calls_from_many_threads_are_the_same(device: &Device) -> Result<()> {
    let tensors = plain(device, DType::F32)?;
    device.synchronize()?;
    let call = || -> Result<Vec<Vec<f64>>> {
        if !device.is_cpu() {
            return Ok(vec![elements(&attend(&tensors)?)]);
        }
        let value = Var::from_tensor(&tensors[0])?;
        let output = attend(&[value.as_tensor().clone(), tensors[1].clone(), tensors[2].clone()])?;
        let gradients = output.sqr()?.backward()?;
        Ok(vec![elements(&output), elements(gradients.get(&value).unwrap())])
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

pub fn config() -> Config {
    Config { d_model: 16, n_heads: 4, n_points: vec![2; 2] }
}

/// The module of `transformers`, and its tensors.
pub fn of_transformers(
    device: &Device,
    dtype: DType,
) -> Result<(MSDeformAttn, HashMap<String, Tensor>)> {
    let vb = VarBuilder::from_buffered_safetensors(OF_TRANSFORMERS.to_vec(), dtype, device)?;
    let module = MSDeformAttn::new(&config(), vb.pp("self_attn"))?;
    Ok((module, safetensors::load_buffer(OF_TRANSFORMERS, device)?))
}

pub fn a_checkpoint_gives_what_transformers_gives(device: &Device) -> Result<()> {
    for dtype in dtypes(device) {
        let bound = match dtype {
            DType::F16 => 5e-3,
            DType::BF16 => 4e-2,
            _ => 1e-5,
        };
        let (module, all) = of_transformers(device, dtype)?;
        let input = |name: &str| all[name].to_dtype(dtype);
        for (references, output) in [("points", "output_points"), ("boxes", "output_boxes")] {
            let found = module.forward(
                &input("query")?,
                &input(references)?,
                &input("input_flatten")?,
                OF_TRANSFORMERS_LEVELS,
                Some(&all["padding_mask"]),
            )?;
            assert_eq!(found.dtype(), dtype);
            assert_close(output, &elements(&found), &elements(&all[output]), bound);
        }
    }
    Ok(())
}

pub fn an_encoder_layer_learns_and_comes_back_from_its_file(device: &Device) -> Result<()> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    let layer = EncoderLayer::new(&config(), 32, vb)?;
    let references = centres(&OF_TRANSFORMERS_LEVELS)?.to_device(device)?;
    let shape = [2, references.dim(1)?, 16];
    let numbers =
        |seed, shape: &[usize]| random(seed, shape, 1.0, 0.0, DType::F32)?.to_device(device);
    let (pixels, target) = (numbers(1, &shape)?, numbers(3, &shape)?);
    let positions = (numbers(2, &[1, shape[1], 16])? * 0.3)?;
    let forward = |layer: &EncoderLayer| {
        layer.forward(&pixels, &positions, &references, &OF_TRANSFORMERS_LEVELS)
    };
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-2)?;
    let mut losses = Vec::new();
    for step in 0..30 {
        let loss = mse(&forward(&layer)?, &target)?;
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
    let vb = VarBuilder::from_buffered_safetensors(std::fs::read(&file)?, DType::F32, device)?;
    let loaded = forward(&EncoderLayer::new(&config(), 32, vb)?)?;
    assert_eq!(elements(&forward(&layer)?), elements(&loaded));
    Ok(())
}
