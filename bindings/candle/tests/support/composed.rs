//! The operator written in candle's own operations.

use candle_core::{DType, Result, Tensor};

/// Samples at locations `[N, Lq, M, L, P, 2]`, summed with weights `[N, Lq, M, L, P]`, as candle can say it: on each level the four pixels
/// around every sample are picked with one `index_select` and summed by one product of matrices. Its gradients are candle's.
pub fn composed(
    value: &Tensor,
    levels: &[(usize, usize)],
    locations: &Tensor,
    weights: &Tensor,
) -> Result<Tensor> {
    let (batch, _, heads, channels) = value.dims4()?;
    let (queries, points) = (locations.dim(1)?, locations.dim(4)?);
    let rows = batch * heads * queries;
    // Samples of a level, [N, M, Lq, P].
    let by_head = |x: Tensor| x.permute((0, 2, 1, 3))?.contiguous();
    let mut sum = Tensor::zeros((rows, 1, channels), value.dtype(), value.device())?;
    let mut start = 0;
    for (level, &(height, width)) in levels.iter().enumerate() {
        let pixels = height * width;
        let map = value.narrow(1, start, pixels)?.permute((0, 2, 1, 3))?.contiguous()?;
        let map = map.reshape((batch * heads * pixels, channels))?;
        start += pixels;
        let first = Tensor::arange(0u32, (batch * heads) as u32, value.device())?;
        let first = (first * pixels as f64)?.reshape((batch, heads, 1, 1))?;
        let along = |axis: usize, size: usize| {
            let location = locations.narrow(3, level, 1)?.squeeze(3)?.narrow(4, axis, 1)?;
            by_head(location.squeeze(4)?)?.affine(size as f64, -0.5)
        };
        let (x, y) = (along(0, width)?, along(1, height)?);
        let (left, top) = (x.floor()?.detach(), y.floor()?.detach());
        let (to_right, to_bottom) = ((&x - &left)?, (&y - &top)?);
        let weight = by_head(weights.narrow(3, level, 1)?.squeeze(3)?)?;
        let (mut picked, mut shares) = (Vec::new(), Vec::new());
        for (dx, dy) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
            let (column, row) = ((&left + dx)?, (&top + dy)?);
            let inside = |at: &Tensor, size: usize| at.ge(0.0)? * at.lt(size as f64)?;
            let inside =
                (inside(&column, width)? * inside(&row, height)?)?.to_dtype(value.dtype())?;
            let part = |to: &Tensor, after: f64| {
                if after == 1.0 { Ok(to.clone()) } else { to.affine(-1.0, 1.0) }
            };
            let bilinear = (part(&to_right, dx)? * part(&to_bottom, dy)?)?;
            shares.push(((bilinear * inside)? * &weight)?);
            let column = column.clamp(0.0, width as f64 - 1.0)?;
            let row = row.clamp(0.0, height as f64 - 1.0)?;
            let pixel = ((row * width as f64)? + column)?.to_dtype(DType::U32)?;
            picked.push(pixel.broadcast_add(&first)?);
        }
        let picked = map.index_select(&Tensor::cat(&picked, 3)?.flatten_all()?, 0)?;
        let picked = picked.reshape((rows, 4 * points, channels))?;
        let shares = Tensor::cat(&shares, 3)?.reshape((rows, 1, 4 * points))?;
        sum = (sum + shares.matmul(&picked)?)?;
    }
    let sum = sum.reshape((batch, heads, queries, channels))?.permute((0, 2, 1, 3))?;
    sum.reshape((batch, queries, heads * channels))
}
