//! The attention layer of Deformable-DETR around the operator.

use std::f64::consts::TAU;

use candle_core::{D, DType, Tensor, Var};
use candle_nn::{Init, Linear, Module, VarBuilder};
use msdeform::Offsets;

use crate::{Error, Levels, Result, ms_deform_attn_from_offsets};

/// Sizes of a [`MSDeformAttn`]; those of Deformable-DETR unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Channels of queries and values, a multiple of `n_heads`.
    pub d_model: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Sampling points of a head on each level: as many numbers as there are levels.
    pub n_points: Vec<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self { d_model: 256, n_heads: 8, n_points: vec![4; 4] }
    }
}

/// Multi-scale deformable attention with its projections.
///
/// Parameters have the names and shapes of the module of Deformable-DETR, so that its checkpoints load: `sampling_offsets`,
/// `attention_weights`, `value_proj` and `output_proj`, each with `weight` and `bias`.
#[derive(Clone, Debug)]
pub struct MSDeformAttn {
    sampling_offsets: Linear,
    attention_weights: Linear,
    value_proj: Linear,
    output_proj: Linear,
    config: Config,
}

impl MSDeformAttn {
    /// Takes the parameters from where `vb` has them. Where it makes them (a `VarMap` that is still without), each head looks into its own
    /// direction, further with every point, and all weights are equal.
    ///
    /// # Errors
    /// Sizes that do not fit each other; parameters that are missing or of another shape.
    #[allow(clippy::needless_pass_by_value, reason = "candle's layers are all made so")]
    pub fn new(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let Config { d_model, n_heads, ref n_points } = *config;
        let refuse = |reason: String| Err(Error::Configuration { reason });
        if n_heads == 0 || d_model == 0 || d_model % n_heads != 0 {
            let expected = "expected a positive multiple of `n_heads`";
            return refuse(format!("`d_model` is {d_model}; {expected}, {n_heads}"));
        }
        let samples = n_points.iter().try_fold(0usize, |sum, &points| sum.checked_add(points));
        let Some(rows) = samples.and_then(|samples| samples.checked_mul(2 * n_heads)) else {
            return refuse(format!("{n_points:?} are more points than can be counted"));
        };
        let zeros = Init::Const(0.0);
        // As `xavier_uniform_` of PyTorch, for as many outputs as inputs.
        let bound = (3.0 / d_model as f64).sqrt();
        let xavier = Init::Uniform { lo: -bound, up: bound };
        let linear = |name: &str, outputs: usize, init: Init| -> candle_core::Result<Linear> {
            let vb = vb.pp(name);
            let weight = vb.get_with_hints((outputs, d_model), "weight", init)?;
            Ok(Linear::new(weight, Some(vb.get_with_hints(outputs, "bias", zeros)?)))
        };
        let is_new = !vb.contains_tensor("sampling_offsets.bias");
        let sampling_offsets = linear("sampling_offsets", rows, zeros)?;
        if let Some(bias) = sampling_offsets.bias().filter(|bias| is_new && bias.is_variable()) {
            Var::from_tensor(bias)?.set(&directions(config, bias)?)?;
        }
        Ok(Self {
            sampling_offsets,
            attention_weights: linear("attention_weights", rows / 2, zeros)?,
            value_proj: linear("value_proj", d_model, xavier)?,
            output_proj: linear("output_proj", d_model, xavier)?,
            config: config.clone(),
        })
    }

    /// Attends.
    ///
    /// - `query`: `[N, Lq, d_model]`.
    /// - `reference_points`: `[N, Lq, L, 2]`, (x, y) in `[0, 1]` with (0, 0) the upper left corner, or `[N, Lq, L, 4]`, boxes (x, y,
    ///   width, height). `L` may be 1: one for all levels.
    /// - `input_flatten`: `[N, S, d_model]`, the pixels of all levels.
    /// - `levels`: (height, width) of each.
    /// - `padding_mask`: `[N, S]`, `U8`, not 0 for pixels that are padding and count as zero.
    ///
    /// The result is `[N, Lq, d_model]`.
    ///
    /// # Errors
    /// Tensors of shapes that fit neither each other nor the module; see [`ms_deform_attn_from_offsets`].
    pub fn forward(
        &self,
        query: &Tensor,
        reference_points: &Tensor,
        input_flatten: &Tensor,
        levels: impl Into<Levels>,
        padding_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let levels = levels.into();
        self.check(query, reference_points, input_flatten, &levels, padding_mask)?;
        let Config { d_model, n_heads, ref n_points } = self.config;
        let (batch, queries, _) = query.dims3()?;
        let (_, pixels, _) = input_flatten.dims3()?;
        let mut value = self.value_proj.forward(input_flatten)?;
        if let Some(mask) = padding_mask {
            let mask = mask.unsqueeze(D::Minus1)?.broadcast_as(value.shape())?;
            value = mask.where_cond(&value.zeros_like()?, &value)?;
        }
        let value = value.reshape((batch, pixels, n_heads, d_model / n_heads))?;
        let offsets = self.sampling_offsets.forward(query)?;
        let offsets = offsets.reshape((batch, queries, n_heads, (), 2))?;
        let logits = self.attention_weights.forward(query)?;
        let logits = logits.reshape((batch, queries, n_heads, ()))?;
        let mut around = match reference_points.dim(3)? {
            2 => Offsets::from_points(),
            _ => Offsets::from_boxes(),
        };
        if reference_points.dim(2)? == 1 {
            around = around.one_for_all_levels();
        }
        let levels = levels.points(n_points.clone());
        let output = ms_deform_attn_from_offsets(
            &value,
            levels,
            reference_points,
            &offsets,
            &logits,
            around,
        )?;
        Ok(self.output_proj.forward(&output)?)
    }

    /// The sizes that it was made for.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Refuses tensors of the wrong shape, by the name of the argument.
    fn check(
        &self,
        query: &Tensor,
        reference_points: &Tensor,
        input_flatten: &Tensor,
        levels: &Levels,
        mask: Option<&Tensor>,
    ) -> Result<()> {
        let wrong = |tensor: &'static str, found: &Tensor, expected: String| {
            let found = found.dims().iter().map(|&size| size as i64).collect();
            Err(msdeform::Error::ShapeMismatch { tensor, found, expected }.into())
        };
        let (width, count) = (self.config.d_model, self.config.n_points.len());
        if levels.count() != count {
            let reason = format!("it is for {count} levels, but {} are given", levels.count());
            return Err(Error::Configuration { reason });
        }
        let (batch, queries) = match *query.dims() {
            [batch, queries, channels] if channels == width => (batch, queries),
            _ => return wrong("query", query, format!("[batch, queries, {width}]")),
        };
        let pixels = match *input_flatten.dims() {
            [images, pixels, channels] if images == batch && channels == width => pixels,
            _ => {
                let expected = format!("[{batch}, pixels, {width}]");
                return wrong("input_flatten", input_flatten, expected);
            }
        };
        match *reference_points.dims() {
            [images, rows, references, 2 | 4]
                if (images == batch || images == 1)
                    && (rows == queries || rows == 1)
                    && (references == count || references == 1) => {}
            _ => {
                let expected = format!("[{batch}, {queries}, {count} or 1, 2 or 4]");
                return wrong("reference_points", reference_points, expected);
            }
        }
        let Some(mask) = mask else { return Ok(()) };
        if mask.dtype() != DType::U8 {
            let (found, expected) = (mask.dtype(), "U8".to_owned());
            return Err(Error::Format { tensor: "padding_mask", found, expected });
        }
        if mask.dims() != [batch, pixels] {
            return wrong("padding_mask", mask, format!("[{batch}, {pixels}]"));
        }
        Ok(())
    }
}

/// Where the points of each head begin: on the square around the reference, not on the circle, one step further with every point.
fn directions(config: &Config, like: &Tensor) -> Result<Tensor> {
    let heads = config.n_heads;
    let mut bias = Vec::with_capacity(like.elem_count());
    for head in 0..heads {
        let angle = TAU * head as f64 / heads as f64;
        let (y, x) = angle.sin_cos();
        let largest = x.abs().max(y.abs());
        for &points in &config.n_points {
            for step in 1..=points {
                bias.extend([x, y].map(|along| along / largest * step as f64));
            }
        }
    }
    Ok(Tensor::from_vec(bias, like.dims(), like.device())?.to_dtype(like.dtype())?)
}
