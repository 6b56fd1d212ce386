//! Levels as tensors.

use msdeform::{LevelLists, ValueLayout};

use super::inputs::Inputs;
use super::{Levels, gpu};
use crate::boxed::Arguments;
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{List, Place, Tensor};

/// Levels as tensors.
pub struct LevelTensors {
    shapes: Tensor,
    starts: Option<Tensor>,
    points: Option<List>,
}

impl Levels for LevelTensors {
    const ARGUMENTS: usize = 3;
    const HAS_OPTIONAL: bool = true;

    fn take(arguments: &mut Arguments<'_>) -> Self {
        Self {
            shapes: arguments.tensor(),
            starts: arguments.optional_tensor(),
            points: arguments.optional_list(),
        }
    }

    fn read(self, torch: &'static Libtorch, inputs: &Inputs) -> Result<Vec<i64>, CallError> {
        let (shape, shapes) = read_integers(self.shapes, torch, "spatial_shapes")?;
        let (&[_, 2], pairs) = (shape.as_slice(), shapes.as_chunks::<2>().0) else {
            return Err(CallError::Levels(format!(
                "`spatial_shapes` has shape {shape:?}, expected [levels, 2]: one (height, width) per level"
            )));
        };
        let starts = self.starts.map(|starts| read_integers(starts, torch, "level_start_index"));
        let starts = starts.transpose()?.map(|(_, starts)| starts);
        let points = self.points.map(|points| points.numbers()).transpose()?;
        let lists =
            LevelLists { sizes: pairs, starts: starts.as_deref(), points: points.as_deref() };
        let (value, positions) = inputs.shapes()?;
        // A value of another shape is refused with the problem.
        let pixels = value.get(1).copied().unwrap_or(0);
        let positions = (inputs.positions().0, positions);
        let levels = lists.complete((pixels, ValueLayout::Interleaved), positions)?;
        Ok(levels.into_flattened())
    }
}

/// Shape and numbers of a small tensor. On a GPU that waits for it.
fn read_integers(
    tensor: Tensor,
    torch: &'static Libtorch,
    name: &'static str,
) -> Result<(Vec<i64>, Vec<i64>), CallError> {
    if let Ok(Place::Gpu(ordinal)) = tensor.place() {
        gpu::refuse_capture(torch, ordinal, || {
            format!(
                "`{name}` is on the GPU and a CUDA graph is being captured: reading it would have to wait for the GPU, \
                 which a capture cannot. Pass `{name}` as a list or as a CPU tensor"
            )
        })?;
    }
    tensor.integers(torch, name)
}
