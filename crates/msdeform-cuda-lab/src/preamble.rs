//! Descriptors at the front of a kernel's parameter, which the driver makes of the value tensor once its address is
//! known: tensor maps and textures.
//!
//! The parameter of such a kernel is `struct { TensorMap map[N]; ForwardParams call; }`, or `struct {
//! LevelTexture texture[LEVELS]; ForwardParams call; }`.

use msdeform::ValueLayout;
use msdeform_cuda::preamble::{Preamble, PreambleRecipe};
use msdeform_cuda::{Context, DriverError, Result, level_geometry};

use msdeform_cuda::variants::Call;

use crate::tensor_map::EncodedMap;
use crate::texture::LayeredTexture;

/// Maps that fit the 32764 bytes a parameter may have, with room for the call.
pub const MAPS_PER_SLAB_CAPACITY: usize = 224;

/// Tensor maps of the value tensor, for the copy engine of compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileMaps {
    /// Channels, columns and rows of the tile that one copy moves.
    pub tile: [u32; 3],
    /// How they are made.
    pub kind: MapKind,
}

/// How many maps there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Three dimensions (channel, column, row); one per image, head and level, at
    /// `slab * levels + level`, in an array of [`MAPS_PER_SLAB_CAPACITY`].
    PerSlab,
    /// Four dimensions, the last one being the slab (image and head); one per level.
    PerLevel,
}

/// One map, as requested from the driver or the emulator. Zeros outside; no swizzle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileMap {
    /// First element, in bytes from the value tensor's address.
    pub offset_bytes: u64,
    /// Elements along each dimension, innermost first.
    pub size: Vec<u32>,
    /// Bytes from one element to the next along each dimension but the innermost.
    pub stride_bytes: Vec<u64>,
    /// Elements of the tile along each dimension.
    pub tile: Vec<u32>,
    /// Bytes of one element.
    pub element_bytes: u32,
}

impl TileMaps {
    /// Every map that the parameter holds, in its order.
    ///
    /// # Errors
    /// The reason why the call has none. It completes "variant x cannot do this: ...".
    pub fn of(&self, call: &Call<'_>) -> std::result::Result<Vec<TileMap>, String> {
        let (problem, strides) = (call.problem, call.strides);
        if problem.layout() == ValueLayout::Interleaved {
            return Err("values are interleaved; tensor maps need head-major ones".to_owned());
        }
        if strides.batch != strides.head * problem.heads() as i64 && problem.batch() > 1 {
            return Err(format!(
                "value strides are {strides:?}; images must follow each other without gaps"
            ));
        }
        let slabs = problem.batch() * problem.heads();
        let maps = slabs * problem.levels().len();
        if self.kind == MapKind::PerSlab && maps > MAPS_PER_SLAB_CAPACITY {
            return Err(format!(
                "{slabs} slabs of {} levels take {maps} tensor maps; a parameter holds {MAPS_PER_SLAB_CAPACITY}",
                problem.levels().len()
            ));
        }
        let element_bytes = problem.dtype().size_bytes();
        let bytes = |elements: i64| elements.unsigned_abs() * element_bytes as u64;
        let levels = level_geometry(problem).map_err(|error| error.to_string())?;
        let [channels, columns, rows] = self.tile;
        let of_level = |slab: usize, level: &msdeform_cuda::LevelGeometry| {
            let mut map = TileMap {
                offset_bytes: bytes(slab as i64 * strides.head + level.origin * strides.pixel),
                size: vec![problem.channels() as u32, level.width as u32, level.height as u32],
                stride_bytes: vec![
                    bytes(strides.pixel),
                    bytes(i64::from(level.row_pitch) * strides.pixel),
                ],
                tile: vec![channels, columns, rows],
                element_bytes: element_bytes as u32,
            };
            if self.kind == MapKind::PerLevel {
                map.size.push(slabs as u32);
                map.stride_bytes.push(bytes(strides.head));
                map.tile.push(1);
            }
            map
        };
        Ok(match self.kind {
            MapKind::PerLevel => levels.iter().map(|level| of_level(0, level)).collect(),
            MapKind::PerSlab => (0..slabs)
                .flat_map(|slab| levels.iter().map(move |level| (slab, level)))
                .map(|(slab, level)| of_level(slab, level))
                .collect(),
        })
    }

    /// Entries of the array in the parameter.
    pub fn capacity(&self, levels: usize) -> usize {
        match self.kind {
            MapKind::PerSlab => MAPS_PER_SLAB_CAPACITY,
            MapKind::PerLevel => levels,
        }
    }
}

impl PreambleRecipe for TileMaps {
    fn prepare(&self, _: &Context, call: &Call<'_>) -> Result<Box<dyn Preamble>> {
        let maps = self.of(call).map_err(refusal)?;
        Ok(Box::new(Maps { maps, capacity: self.capacity(call.problem.levels().len()) }))
    }
}

/// Maps that follow the value's address, and how many the parameter has room for.
#[derive(Debug)]
struct Maps {
    maps: Vec<TileMap>,
    capacity: usize,
}

impl Preamble for Maps {
    fn words(&self, value: u64) -> std::result::Result<Vec<u64>, DriverError> {
        let mut words = Vec::with_capacity(self.capacity * EncodedMap::WORDS);
        for map in &self.maps {
            words.extend(EncodedMap::new(value, map)?.words());
        }
        words.resize(self.capacity * EncodedMap::WORDS, 0);
        Ok(words)
    }
}

/// The error of a call without a preamble; its variant has refused the call before.
fn refusal(reason: String) -> msdeform_cuda::Error {
    msdeform::Error::Unsupported { variant: "ladder", reason }.into()
}

/// Layered textures, one per level: a layer is four channels of one slab (image and head). The plan owns
/// them; a kernel of the pipeline fills them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelTextures;

/// One layered texture, in texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextureShape {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Layers.
    pub layers: usize,
}

/// Channels of a texel.
const TEXEL_CHANNELS: usize = 4;
/// The most layers of a texture on compute capability 3.5 and later.
const MAX_LAYERS: usize = 2048;
const MAX_LAYERED_SIZE: usize = 32_768;

impl LevelTextures {
    /// The texture of every level.
    ///
    /// # Errors
    /// The reason why the call has none. It completes "variant x cannot do this: ...".
    pub fn of(self, call: &Call<'_>) -> std::result::Result<Vec<TextureShape>, String> {
        let problem = call.problem;
        let slabs = problem.batch() * problem.heads();
        let layers = slabs * problem.channels().div_ceil(TEXEL_CHANNELS);
        if layers > MAX_LAYERS {
            return Err(format!(
                "{slabs} slabs of {} channels take {layers} layers of a texture, which has at most {MAX_LAYERS}",
                problem.channels()
            ));
        }
        let of_level = |level: &msdeform::Level| {
            let (height, width) = (level.height, level.width);
            if height.max(width) > MAX_LAYERED_SIZE {
                return Err(format!(
                    "a level of {height} x {width}; a layered texture has at most {MAX_LAYERED_SIZE}"
                ));
            }
            Ok(TextureShape { width, height, layers })
        };
        problem.levels().iter().map(of_level).collect()
    }
}

impl PreambleRecipe for LevelTextures {
    fn prepare(&self, context: &Context, call: &Call<'_>) -> Result<Box<dyn Preamble>> {
        let shapes = self.of(call).map_err(refusal)?.into_iter();
        let made: Result<Vec<_>> =
            shapes.map(|shape| LayeredTexture::new(context, shape)).collect();
        Ok(Box::new(Textures(made?)))
    }
}

/// Textures that are the plan's own: `struct LevelTexture { texture, surface }` of every level.
#[derive(Debug)]
struct Textures(Vec<LayeredTexture>);

impl Preamble for Textures {
    fn words(&self, _: u64) -> std::result::Result<Vec<u64>, DriverError> {
        Ok(self.0.iter().flat_map(|texture| [texture.texture, texture.surface]).collect())
    }

    fn device_bytes(&self) -> usize {
        self.0.iter().map(|texture| texture.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Problem, ProblemBuilder};

    use super::*;
    use msdeform_cuda::DeviceProps;

    fn problem(batch: usize, heads: usize) -> ProblemBuilder {
        let problem = Problem::builder().batch(batch).heads(heads).channels(32).queries(5);
        problem.levels([(8, 9), (4, 5)])
    }

    fn maps(layout: ValueLayout, kind: MapKind) -> std::result::Result<Vec<TileMap>, String> {
        let problem = problem(2, 3).dtype(DType::F16).layout(layout).build().unwrap();
        let device = DeviceProps::h200();
        TileMaps { tile: [32, 2, 2], kind }.of(&Call::new(&problem, &device))
    }

    #[test]
    fn a_map_leaves_out_the_border_of_a_level() {
        let per_level = maps(ValueLayout::HeadMajorPadded, MapKind::PerLevel).unwrap();
        let slab = (10 * 11 + 6 * 7) * 64;
        assert_eq!(
            per_level[1],
            TileMap {
                offset_bytes: (10 * 11 + 7 + 1) * 64,
                size: vec![32, 5, 4, 6],
                stride_bytes: vec![64, 7 * 64, slab],
                tile: vec![32, 2, 2, 1],
                element_bytes: 2,
            }
        );
        let per_slab = maps(ValueLayout::HeadMajorPadded, MapKind::PerSlab).unwrap();
        assert_eq!(per_slab.len(), 12);
        assert_eq!(per_slab[2 * 2 + 1].offset_bytes, 2 * slab + per_level[1].offset_bytes);
        assert_eq!(per_slab[5].size, [32, 5, 4]);
    }

    #[test]
    fn a_texture_has_at_most_2048_layers_of_four_channels() {
        let of = |batch| {
            let problem = problem(batch, 8).build().unwrap();
            LevelTextures.of(&Call::new(&problem, &DeviceProps::h200()))
        };
        let shapes = of(6).unwrap();
        assert_eq!(shapes[1], TextureShape { width: 5, height: 4, layers: 384 });
        assert_eq!(of(32).unwrap()[0].layers, 2048);
        let reason = of(33).unwrap_err();
        assert!(reason.contains("2112 layers"), "{reason}");
    }

    #[test]
    fn interleaved_values_are_refused_by_name() {
        let reason = maps(ValueLayout::Interleaved, MapKind::PerLevel).unwrap_err();
        assert!(reason.contains("interleaved"), "{reason}");
    }
}
