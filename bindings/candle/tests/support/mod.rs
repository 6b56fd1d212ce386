//! The operator written in candle's own operations, and how results are compared.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use candle_core::{D, DType, Device, Result, Tensor};

/// Samples at locations `[N, Lq, M, L, P, 2]`, summed with weights `[N, Lq, M, L, P]`, as candle can say it: pixels are picked with
/// `index_select`. Its gradients are candle's.
pub fn composed(
    value: &Tensor,
    levels: &[(usize, usize)],
    locations: &Tensor,
    weights: &Tensor,
) -> Result<Tensor> {
    let (batch, _, heads, channels) = value.dims4()?;
    let (queries, points) = (locations.dim(1)?, locations.dim(4)?);
    let device = value.device();
    let images_and_heads = u32::try_from(batch * heads).unwrap();
    let mut start = 0;
    let mut sum: Option<Tensor> = None;
    for (level, &(height, width)) in levels.iter().enumerate() {
        let pixels = height * width;
        let map = value.narrow(1, start, pixels)?.permute((0, 2, 1, 3))?.contiguous()?;
        let map = map.reshape((batch * heads * pixels, channels))?;
        start += pixels;
        // [N, M, Lq, P] each.
        let along = |axis: usize, size: usize| {
            let location = locations.narrow(3, level, 1)?.squeeze(3)?.narrow(4, axis, 1)?;
            location.squeeze(4)?.permute((0, 2, 1, 3))?.contiguous()?.affine(size as f64, -0.5)
        };
        let (x, y) = (along(0, width)?, along(1, height)?);
        let (left, top) = (x.floor()?.detach(), y.floor()?.detach());
        let (to_right, to_bottom) = ((&x - &left)?, (&y - &top)?);
        let first = (Tensor::arange(0u32, images_and_heads, device)? * pixels as f64)?;
        let first = first.reshape((batch, heads, 1, 1))?;
        let share = weights.narrow(3, level, 1)?.squeeze(3)?.permute((0, 2, 1, 3))?.contiguous()?;
        for (dx, dy) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
            let (column, row) = ((&left + dx)?, (&top + dy)?);
            let inside = |at: &Tensor, size: usize| {
                let within = (at.ge(0.0)? * at.lt(size as f64)?)?;
                within.to_dtype(value.dtype())
            };
            let inside = (inside(&column, width)? * inside(&row, height)?)?;
            let part = |to: &Tensor, after: f64| {
                if after == 1.0 { Ok(to.clone()) } else { to.affine(-1.0, 1.0) }
            };
            let share = (((part(&to_right, dx)? * part(&to_bottom, dy)?)? * inside)? * &share)?;
            let column = column.clamp(0.0, width as f64 - 1.0)?;
            let row = row.clamp(0.0, height as f64 - 1.0)?;
            let pixel = ((row * width as f64)? + column)?.to_dtype(DType::U32)?;
            let picked = map.index_select(&pixel.broadcast_add(&first)?.flatten_all()?, 0)?;
            let picked = picked.reshape((batch, heads, queries, points, channels))?;
            let part = picked.broadcast_mul(&share.unsqueeze(D::Minus1)?)?.sum(3)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => (sum + part)?,
            });
        }
    }
    let sum =
        sum.unwrap_or(Tensor::zeros((batch, heads, queries, channels), value.dtype(), device)?);
    sum.permute((0, 2, 1, 3))?.reshape((batch, queries, heads * channels))
}

/// Numbers between -1 and 1 from a seed, the same everywhere.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// A tensor of such numbers, scaled and moved.
pub fn random(seed: u64, shape: &[usize], scale: f64, at: f64, dtype: DType) -> Result<Tensor> {
    let numbers = numbers(seed, shape.iter().product());
    let numbers: Vec<f64> = numbers.into_iter().map(|x| x * scale + at).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Every element, exactly.
pub fn elements(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The relative L2 error; infinite where anything is no number.
pub fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let relative = difference / norm(&mut expected.iter().copied()).max(f64::MIN_POSITIVE);
    if relative.is_nan() { f64::INFINITY } else { relative }
}

/// Fails where the error is above a bound, or where nothing was computed.
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert!(expected.iter().any(|&x| x != 0.0), "{what}: nothing to compare with");
    let error = error(found, expected);
    assert!(error <= bound, "{what}: error {error:.2e}, at most {bound:.0e}");
}
