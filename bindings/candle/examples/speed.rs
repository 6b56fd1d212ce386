//! Times the encoder of Deformable-DETR on an 800 x 1333 image (`ddetr_enc`, one image, f32): this crate and the same in candle's own
//! operations.
//!
//! `cargo run --release --example speed`, in `bindings/candle`.

#[path = "../tests/support/composed.rs"]
mod composed;

use std::time::Instant;

use candle_core::{Device, Result, Tensor};
use msdeform_candle::ms_deform_attn;

const LEVELS: [(usize, usize); 4] = [(100, 167), (50, 84), (25, 42), (13, 21)];
const RUNS: usize = 7;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let pixels: usize = LEVELS.iter().map(|(height, width)| height * width).sum();
    let value = Tensor::randn(0f32, 1.0, (1, pixels, 8, 32), &device)?;
    let locations = near_their_pixels(&device)?;
    let weights = Tensor::full(1f32 / 16.0, (1, pixels, 8, 4, 4), &device)?;
    println!("ddetr_enc, f32, batch 1, {} threads", candle_core::utils::get_num_threads());
    let ours =
        time("msdeform-candle", || Ok(ms_deform_attn(&value, LEVELS, &locations, &weights)?))?;
    let theirs =
        time("candle alone", || composed::composed(&value, &LEVELS, &locations, &weights))?;
    let apart = (ours.1 - theirs.1)?.abs()?.max_all()?.to_scalar::<f32>()?;
    println!("{:.1} times as fast; results differ by {apart:.1e} at most", theirs.0 / ours.0);
    Ok(())
}

/// The best and the median of some runs after a first, and the result.
fn time(name: &str, call: impl Fn() -> Result<Tensor>) -> Result<(f64, Tensor)> {
    let result = call()?;
    let mut times_ms = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        call()?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    let (best, median) = (times_ms[0], times_ms[RUNS / 2]);
    println!("{name:>16}: {median:8.1} ms (best {best:.1})");
    Ok((median, result))
}

/// Every pixel looks at its surroundings on all levels, as a trained encoder does: `[1, S, 8, 4, 4, 2]`.
fn near_their_pixels(device: &Device) -> Result<Tensor> {
    let mut centres = Vec::new();
    for (height, width) in LEVELS {
        for at in 0..height * width {
            let centre = |at: usize, size: usize| (at as f32 + 0.5) / size as f32;
            centres.extend([centre(at % width, width), centre(at / width, height)]);
        }
    }
    let pixels = centres.len() / 2;
    let centres = Tensor::from_vec(centres, (1, pixels, 1, 1, 1, 2), device)?;
    let sizes: Vec<f32> = LEVELS.iter().flat_map(|&(h, w)| [w as f32, h as f32]).collect();
    let sizes = Tensor::from_vec(sizes, (1, 1, 1, LEVELS.len(), 1, 2), device)?;
    let offsets = Tensor::randn(0f32, 2.0, (1, pixels, 8, LEVELS.len(), 4, 2), device)?;
    offsets.broadcast_div(&sizes)?.broadcast_add(&centres)
}
