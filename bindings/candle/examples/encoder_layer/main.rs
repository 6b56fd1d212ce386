//! Trains a layer of Deformable-DETR's encoder to look elsewhere: every pixel learns a number of its neighbour on the right.
//!
//! `cargo run --release --example encoder_layer`, in `bindings/candle`.

mod layer;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss::mse};
use layer::{EncoderLayer, centres};
use msdeform_candle::Config;

const LEVELS: [(usize, usize); 2] = [(12, 16), (6, 8)];
const CHANNELS: usize = 16;
const STEPS: usize = 300;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let config = Config { d_model: CHANNELS, n_heads: 4, n_points: vec![2; LEVELS.len()] };
    let layer = EncoderLayer::new(&config, 4 * CHANNELS, vb.pp("layer"))?;
    let head: Linear = linear(CHANNELS, 1, vb.pp("head"))?;
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 5e-3)?;

    let references = centres(&LEVELS)?;
    let positions = Tensor::randn(0f32, 0.1, (1, references.dim(1)?, CHANNELS), &device)?;
    for step in 0..=STEPS {
        let (pixels, neighbours) = images(4, &device)?;
        let output = head.forward(&layer.forward(&pixels, &positions, &references, &LEVELS)?)?;
        let loss = mse(&output, &neighbours)?;
        optimizer.backward_step(&loss)?;
        if step % 50 == 0 {
            println!("step {step:3}: loss {:.3}", loss.to_scalar::<f32>()?);
        }
    }
    Ok(())
}

/// Random pixels of all levels, and the first channel of what is on the right of each.
fn images(count: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut all, mut moved) = (Vec::new(), Vec::new());
    for (height, width) in LEVELS {
        let map = Tensor::randn(0f32, 1.0, (count, height, width, CHANNELS), device)?;
        moved.push(map.narrow(3, 0, 1)?.roll(-1, 2)?.flatten(1, 2)?);
        all.push(map.flatten(1, 2)?);
    }
    Ok((Tensor::cat(&all, 1)?, Tensor::cat(&moved, 1)?))
}
