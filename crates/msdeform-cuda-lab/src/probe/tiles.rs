//! Tiles of 2 x 2 pixels with 32 half channels: how fast they reach shared memory, and whether the copy engine
//! brings the right bytes.

use half::f16;

use super::{Check, Lab, TILE_COPY};
use crate::preamble::TileMap;
use crate::tensor_map::EncodedMap;
use msdeform_cuda::{DeviceBuffer, DriverError, LaunchGeometry, Result};

const CHANNELS: usize = 32;
const PIXEL_BYTES: usize = 2 * CHANNELS;
const TILE_BYTES: usize = 4 * PIXEL_BYTES;
/// As in the kernel.
const SLOTS: usize = 8;
const WARPS: u32 = 8;
/// The first level of the seed documents: a megabyte, mostly in L2.
const LEVEL: (usize, usize) = (92, 160);
/// A level whose every tile, one pixel outside included, is compared.
const CHECKED_LEVEL: (usize, usize) = (5, 7);
/// The copy engine came with this compute capability.
const FIRST_WITH_COPY_ENGINE: u32 = 9;

/// How tiles are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copier {
    /// 16 lanes, 16 bytes each.
    Lanes,
    /// One instruction of the copy engine.
    Engine,
}

impl Copier {
    pub(super) fn define(self) -> String {
        format!("-DMSDA_PROBE_TMA={}", i32::from(self == Self::Engine))
    }
}

/// The mirror of the kernels' parameter.
#[repr(C)]
struct TileParams {
    map: EncodedMap,
    slab: u64,
    out: u64,
    width: i32,
    height: i32,
    rounds: i32,
    reserved: i32,
}

impl TileParams {
    fn new(
        map: EncodedMap,
        slab: u64,
        out: u64,
        (height, width): (usize, usize),
        rounds: i32,
    ) -> Self {
        let (width, height) = (width as i32, height as i32);
        Self { map, slab, out, width, height, rounds, reserved: 0 }
    }
}

fn map((height, width): (usize, usize)) -> TileMap {
    TileMap {
        offset_bytes: 0,
        size: vec![CHANNELS as u32, width as u32, height as u32],
        stride_bytes: vec![PIXEL_BYTES as u64, (width * PIXEL_BYTES) as u64],
        tile: vec![CHANNELS as u32, 2, 2],
        element_bytes: 2,
    }
}

impl Lab<'_> {
    pub(super) fn has_copy_engine(&self) -> bool {
        self.context().props().compute_capability.0 >= FIRST_WITH_COPY_ENGINE
    }

    /// The driver's map of a level. The driver needs a current context, although it reads and copies nothing.
    fn tensor_map(
        &self,
        slab: u64,
        level: (usize, usize),
    ) -> Result<std::result::Result<EncodedMap, DriverError>> {
        let _entered = self.context().enter()?;
        Ok(EncodedMap::new(slab, &map(level)))
    }

    /// GB/s of tiles that reach shared memory.
    pub(super) fn tile_copy(&self, copier: Copier) -> Result<f64> {
        let (height, width) = LEVEL;
        let slab = DeviceBuffer::<u8>::filled(&self.stream, height * width * PIXEL_BYTES, 1)?;
        let function = self.function(TILE_COPY, "tile_copy", &[copier.define()])?;
        let (map, tiles, barriers) = match copier {
            Copier::Engine => (self.tensor_map(slab.address(), LEVEL)??, SLOTS, SLOTS * 8),
            // Both halves of a warp have slots of their own.
            Copier::Lanes => (EncodedMap::unused(), 2 * SLOTS, 0),
        };
        let warp_bytes = u32::try_from(tiles * TILE_BYTES + barriers).unwrap_or(u32::MAX);
        let geometry = LaunchGeometry {
            shared_bytes: WARPS * warp_bytes,
            ..LaunchGeometry::linear(4 * self.multiprocessors(), 32 * WARPS)
        };
        let rounds = 128;
        let (from, to) = (slab.address(), self.sink.address());
        let params = TileParams::new(map, from, to, LEVEL, rounds);
        // SAFETY: the mirror of the kernel's struct; tiles lie within the slab, slots within the shared memory.
        let best = self.best_us(&|| unsafe { self.queue(&function, geometry, &params) })?;
        let copied = (geometry.grid[0] * WARPS) as usize * tiles * rounds as usize * TILE_BYTES;
        Ok(copied as f64 / best * 1e-3)
    }

    /// Asks the driver for the map of a small level and compares every tile that the copy engine brings.
    pub(super) fn check_tensor_map(&self) -> Result<Check> {
        let name = "tma_descriptor";
        let (height, width) = CHECKED_LEVEL;
        let pixels: Vec<f16> = (1..).take(height * width * CHANNELS).map(f16::from_bits).collect();
        let slab = DeviceBuffer::from_host(&self.stream, &pixels)?;
        let map = match self.tensor_map(slab.address(), CHECKED_LEVEL)? {
            Ok(map) => map,
            Err(refused) => {
                let outcome = refused.to_string();
                return Ok(Check { name, passed: false, outcome });
            }
        };
        if !self.has_copy_engine() {
            let outcome = "the driver makes the map, but this GPU has no copy engine".to_owned();
            return Ok(Check { name, passed: false, outcome });
        }
        let function = self.function(TILE_COPY, "tile_check", &[Copier::Engine.define()])?;
        let (columns, rows) = (width + 1, height + 1);
        let elements = columns * rows * TILE_BYTES / 2;
        let out = DeviceBuffer::<f16>::filled(&self.stream, elements, 0xff)?;
        let geometry = LaunchGeometry {
            grid: [columns as u32, rows as u32, 1],
            shared_bytes: TILE_BYTES as u32 + 8,
            ..LaunchGeometry::linear(1, 64)
        };
        let params = TileParams::new(map, slab.address(), out.address(), CHECKED_LEVEL, 0);
        // SAFETY: the mirror of the kernel's struct; `out` has room for the tile of every block.
        unsafe { self.queue(&function, geometry, &params) }?;
        let found = out.to_host(&self.stream)?;
        let expected = expected_tiles(&pixels, CHECKED_LEVEL);
        // Compares bits, so that a NaN that was never overwritten is wrong too.
        let pairs = found.iter().zip(&expected);
        let wrong = pairs.filter(|(found, expected)| found.to_bits() != expected.to_bits()).count();
        let tiles = columns * rows;
        let outcome = if wrong == 0 {
            format!(
                "{tiles} tiles of 2 x 2 x 32 are right to the bit, with zeros outside of the level"
            )
        } else {
            format!("{wrong} of {} elements are wrong", expected.len())
        };
        Ok(Check { name, passed: wrong == 0, outcome })
    }
}

/// Every tile of a level, from one pixel above and left of it, with zeros outside.
fn expected_tiles(pixels: &[f16], (height, width): (usize, usize)) -> Vec<f16> {
    let mut tiles = Vec::new();
    for (top, left) in (0..=height).flat_map(|y| (0..=width).map(move |x| (y, x))) {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            // One pixel more than the coordinate, which starts at -1.
            let (y, x) = (top + row, left + column);
            let inside = (1..=height).contains(&y) && (1..=width).contains(&x);
            tiles.extend((0..CHANNELS).map(|channel| match inside {
                true => pixels[((y - 1) * width + x - 1) * CHANNELS + channel],
                false => f16::ZERO,
            }));
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_tiles_have_zeros_outside() {
        let pixels: Vec<f16> = (1..).take(2 * 2 * CHANNELS).map(f16::from_bits).collect();
        let tiles = expected_tiles(&pixels, (2, 2));
        assert_eq!(tiles.len(), 9 * 4 * CHANNELS);
        let element = |tile: usize, index: usize| tiles[tile * 4 * CHANNELS + index].to_bits();
        // The first tile has one pixel of the level, its last; the middle one has all four.
        assert_eq!((element(0, 0), element(0, 3 * CHANNELS)), (0, 1));
        assert_eq!((element(4, 0), element(4, 4 * CHANNELS - 1)), (1, 128));
        assert_eq!(element(8, CHANNELS), 0);
    }

    #[test]
    fn the_parameter_is_laid_out_as_the_kernel_declares_it() {
        assert_eq!(std::mem::offset_of!(TileParams, slab), 128);
        assert_eq!(std::mem::offset_of!(TileParams, out), 136);
        assert_eq!(std::mem::offset_of!(TileParams, width), 144);
        // The driver copies what the kernel declares, 192 bytes; a map of CUDA 13 is aligned to 128 here.
        assert!(size_of::<TileParams>() >= 192 && align_of::<TileParams>().is_multiple_of(64));
    }
}
