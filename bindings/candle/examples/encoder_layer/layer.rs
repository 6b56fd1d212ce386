//! A layer of Deformable-DETR's encoder, with the names of its checkpoints.

use candle_core::{Device, Result, Tensor};
use candle_nn::{Init, Linear, Module, VarBuilder, linear, ops::layer_norm_slow};
use msdeform_candle::{Config, MSDeformAttn};

/// Attention, then two linear layers; each added to what went in, and normalised.
pub struct EncoderLayer {
    self_attn: MSDeformAttn,
    norm1: Norm,
    linear1: Linear,
    linear2: Linear,
    norm2: Norm,
}

impl EncoderLayer {
    /// Takes the parameters from where `vb` has them.
    #[allow(clippy::needless_pass_by_value, reason = "candle's layers are all made so")]
    pub fn new(config: &Config, hidden: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let width = config.d_model;
        Ok(Self {
            self_attn: MSDeformAttn::new(config, vb.pp("self_attn"))?,
            norm1: Norm::new(width, &vb.pp("norm1"))?,
            linear1: linear(width, hidden, vb.pp("linear1"))?,
            linear2: linear(hidden, width, vb.pp("linear2"))?,
            norm2: Norm::new(width, &vb.pp("norm2"))?,
        })
    }

    /// Pixels `[N, S, d_model]` of all levels and where they are, as an embedding of the same shape, to pixels that know of each other.
    pub fn forward(
        &self,
        pixels: &Tensor,
        positions: &Tensor,
        references: &Tensor,
        levels: &[(usize, usize)],
    ) -> Result<Tensor> {
        let query = pixels.broadcast_add(positions)?;
        let attended = self.self_attn.forward(&query, references, pixels, levels, None)?;
        let pixels = self.norm1.forward(&(pixels + attended)?)?;
        let hidden = self.linear1.forward(&pixels)?.relu()?;
        self.norm2.forward(&(&pixels + self.linear2.forward(&hidden)?)?)
    }
}

/// `candle_nn::LayerNorm` takes a shortcut that has no gradient; this is the same without it.
struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(width: usize, vb: &VarBuilder<'_>) -> Result<Self> {
        let weight = vb.get_with_hints(width, "weight", Init::Const(1.0))?;
        Ok(Self { weight, bias: vb.get_with_hints(width, "bias", Init::Const(0.0))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}

/// The centre of every pixel, `[1, S, 1, 2]`: what a query of the encoder starts from on all levels.
pub fn centres(levels: &[(usize, usize)]) -> Result<Tensor> {
    let mut centres = Vec::new();
    for &(height, width) in levels {
        for row in 0..height {
            for column in 0..width {
                let centre = |at: usize, size: usize| (at as f32 + 0.5) / size as f32;
                centres.extend([centre(column, width), centre(row, height)]);
            }
        }
    }
    let pixels = centres.len() / 2;
    Tensor::from_vec(centres, (1, pixels, 1, 2), &Device::Cpu)
}
