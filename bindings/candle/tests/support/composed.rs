//! The operator written in candle's own operations.

use candle_core::{D, DType, Result, Tensor};

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
        let first = (Tensor::arange(0u32, (batch * heads) as u32, device)? * pixels as f64)?;
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
