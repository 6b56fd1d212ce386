//! Many queries: 2-D tiles of them, neighbouring heads or pixels in one wavefront.

use msdeform::{DType, DeviceKind, Direction, Numerics, ValueLayout, VariantSpec};

use super::chunked_sample::{
    heads_of_a_line, lanes_per_pixel, queries_are_pixels, sampling_alignment,
};
use super::{Call, Configuration, Knob, KnobChoices, Specialise, Variant};
use crate::driver::LaunchGeometry;
use crate::sources::{SourceFile, kernel_source};

/// See `kernels/fwd_tile_gather.cu`.
pub struct FwdTileGather;

static SPEC: VariantSpec = VariantSpec {
    id: "fwd_tile_gather",
    direction: Direction::Forward,
    device: DeviceKind::Cuda,
    dtypes: &DType::FAST,
    layouts: &ValueLayout::ALL,
    source: "ours",
    idea: "2-D tiles of queries; two heads (or two pixels) fill every 128-byte wavefront of L1",
    why: "the L1 data path is the wall: no bank conflicts, neighbours share lines, little metadata",
    numerics: Numerics::Contract,
};

static KNOBS: &[Knob] = &[
    Knob { name: "WARPS", values: &[1, 2, 4, 8, 16, 32], meaning: "warps of a block" },
    Knob {
        name: "MIN_BLOCKS",
        values: &[1, 2, 4, 5, 8, 16, 32],
        meaning: "blocks that must fit an SM: caps the registers",
    },
    Knob {
        name: "TILE_WIDTH",
        values: &[4, 8, 16, 32, 64, 128],
        meaning: "queries of a tile along x",
    },
    Knob { name: "TILE_HEIGHT", values: &[1, 2, 4, 8, 16], meaning: "queries of a tile along y" },
    Knob { name: "UNROLL", values: &[1, 2, 4, 8], meaning: "pairs of samples per loop iteration" },
];

/// How the kernel divides a warp; the same arithmetic as at its top.
struct WarpShape {
    groups: usize,
    heads: usize,
    stage_quads: usize,
    runs: usize,
    pairs_pixels: bool,
}

impl WarpShape {
    fn of(call: &Call<'_>) -> Result<Self, String> {
        let problem = call.problem;
        let lanes = lanes_per_pixel(call)?;
        let packed = problem.dtype() != DType::F32;
        let exact = lanes * 16 == problem.channels() * problem.dtype().size_bytes();
        let pairs_pixels = packed && problem.layout().is_head_major() && exact && lanes <= 4;
        let groups = 32 / if pairs_pixels { 2 * lanes } else { lanes };
        let quads = problem.samples().div_ceil(4);
        let stage_quads = quads.min(32 / groups);
        let runs = 32 / (groups * stage_quads.next_power_of_two());
        Ok(Self { groups, heads: heads_of_a_line(call, lanes), stage_quads, runs, pairs_pixels })
    }

    /// Queries that one warp takes at a time, side by side in a row of the tile.
    fn item_queries(&self) -> usize {
        self.runs * self.groups / self.heads
    }

    fn shared_bytes_per_warp(&self, dtype: DType) -> usize {
        let packets = if dtype == DType::F32 { 5 } else { 3 };
        self.runs * self.stage_quads * self.groups * packets * 16
    }
}

/// Tile and block for a call, chosen by measurement (see `docs/kernels/fwd_tile_gather.md`).
struct Tiling {
    warps: usize,
    min_blocks: usize,
    tile_width: usize,
    tile_height: usize,
    unroll: usize,
}

impl Tiling {
    fn choose(call: &Call<'_>, shape: &WarpShape) -> Self {
        let item = shape.item_queries();
        let warps_in_all = (call.rows() as usize).div_ceil(shape.runs * shape.groups);
        let multiprocessors = call.device.multiprocessors as usize;
        let unroll = if call.problem.dtype() == DType::F32 || shape.pairs_pixels { 4 } else { 2 };
        if !queries_are_pixels(call) && warps_in_all < 64 * multiprocessors {
            // Too few to fill the GPU twice: small blocks start and end without waiting for each other,
            // and unordered queries need no second dimension. Where not even 16 warps per SM exist,
            // registers for more loads in flight cost nothing.
            let scarce = warps_in_all <= 16 * multiprocessors;
            let (warps, min_blocks) = if scarce { (4, 4) } else { (2, 16) };
            let tile_width = warps * item;
            return Self { warps, min_blocks, tile_width, tile_height: 1, unroll: 2 };
        }
        let tile_width = item.max(8);
        Self { warps: 8, min_blocks: 4, tile_width, tile_height: 8 * item / tile_width, unroll }
    }
}

impl Variant for FwdTileGather {
    fn spec(&self) -> &'static VariantSpec {
        &SPEC
    }

    fn source(&self) -> SourceFile {
        kernel_source!("fwd_tile_gather.cu")
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn supports(&self, call: &Call<'_>) -> Result<(), String> {
        WarpShape::of(call).map(|_| ())
    }

    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        let shape = WarpShape::of(call)?;
        let chosen = Tiling::choose(call, &shape);
        let knob = |name, default: usize| {
            knobs.get(name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
        };
        let warps = knob("WARPS", chosen.warps);
        let min_blocks = knob("MIN_BLOCKS", chosen.min_blocks);
        let tile_width = knob("TILE_WIDTH", chosen.tile_width);
        let tile_height = knob("TILE_HEIGHT", chosen.tile_height);
        let unroll = knob("UNROLL", chosen.unroll);
        if !tile_width.is_multiple_of(shape.item_queries()) {
            let item = shape.item_queries();
            return Err(format!("TILE_WIDTH={tile_width}; here it must be a multiple of {item}"));
        }
        if warps * min_blocks > 64 {
            return Err(format!("{min_blocks} blocks of {warps} warps; an SM holds 64 warps"));
        }

        let problem = call.problem;
        let pixels = queries_are_pixels(call);
        let raster_width = raster_width(call, tile_width, tile_height);
        let tiles = if pixels {
            let of_level = |level: &msdeform::Level| {
                level.width.div_ceil(tile_width) * level.height.div_ceil(tile_height)
            };
            problem.levels().iter().map(of_level).sum()
        } else {
            let height = problem.queries().div_ceil(raster_width);
            raster_width.div_ceil(tile_width) * height.div_ceil(tile_height)
        };
        let grid_x = u32::try_from(tiles).ok().filter(|&tiles| tiles < 1 << 31);
        let slabs = problem.batch() * (problem.heads() / shape.heads);
        Ok(Configuration {
            specialise: Specialise::ModelAndHeads,
            knobs: vec![
                ("WARPS", warps as i64),
                ("MIN_BLOCKS", min_blocks as i64),
                ("TILE_WIDTH", tile_width as i64),
                ("TILE_HEIGHT", tile_height as i64),
                ("UNROLL", unroll as i64),
            ],
            pipeline: LaunchGeometry {
                // Blocks beyond the grid's height are walked by a loop.
                grid: [grid_x.ok_or("more tiles than a grid holds")?, slabs.min(65_535) as u32, 1],
                block: [32 * warps as u32, 1, 1],
                shared_bytes: (warps * shape.shared_bytes_per_warp(problem.dtype())) as u32,
                cluster: 1,
            }
            .into(),
            value_alignment: 16,
            sampling_alignment: sampling_alignment(call),
            query_raster_width: raster_width as i32,
            grid_aux: i32::from(pixels),
        })
    }
}

/// Width of the raster that the queries are taken to form. A guess that is wrong costs some cache hits,
/// never a result: tiles of a skewed raster still hold neighbours.
fn raster_width(call: &Call<'_>, tile_width: usize, tile_height: usize) -> usize {
    let queries = call.problem.queries();
    if tile_height == 1 {
        return queries;
    }
    let guess = match (call.query_raster_width as usize, call.problem.levels().first()) {
        (known, _) if known > 0 => return known.min(queries),
        (_, Some(level)) => (queries as f64 * level.width as f64 / level.height as f64).sqrt(),
        (_, None) => (queries as f64).sqrt(),
    };
    // Whole tiles: the last column of a raster would otherwise be mostly empty.
    ((guess / tile_width as f64).round() as usize).max(1) * tile_width
}

#[cfg(test)]
mod tests {
    use msdeform::{Problem, ProblemBuilder};

    use super::*;
    use crate::driver::DeviceProps;

    fn encoder() -> ProblemBuilder {
        Problem::builder()
            .batch(2)
            .heads(8)
            .channels(32)
            .queries(22_223)
            .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
            .points(4)
            .dtype(DType::F16)
    }

    fn configured(problem: ProblemBuilder) -> Result<Configuration, String> {
        let (problem, device) = (problem.build().unwrap(), DeviceProps::h200());
        let call = Call::new(&problem, &device);
        FwdTileGather.supports(&call)?;
        FwdTileGather.configure(&call, &KnobChoices::default())
    }

    #[test]
    fn an_encoder_is_walked_in_tiles_of_its_levels() {
        let configuration = configured(encoder()).unwrap();
        let tiles = 21 * 25 + 11 * 13 + 6 * 7 + 3 * 4;
        assert_eq!(
            configuration.geometry().unwrap().grid,
            [tiles, 8, 1],
            "tiles x (2 images x 4 head pairs)"
        );
        assert_eq!(configuration.geometry().unwrap().shared_bytes, 8 * 1536);
        assert_eq!(configuration.grid_aux, 1);
    }

    #[test]
    fn other_queries_are_walked_as_a_raster_of_whole_tiles() {
        let seed = encoder().batch(6).queries(15_422).points(8).levels([(92, 160), (46, 80)]);
        let configuration = configured(seed).unwrap();
        assert_eq!(configuration.query_raster_width, 160);
        assert_eq!(configuration.geometry().unwrap().grid, [20 * 25, 24, 1]);
        let decoder = configured(encoder().queries(900)).unwrap();
        assert_eq!(decoder.query_raster_width, 900);
        assert_eq!(decoder.geometry().unwrap().grid, [57, 8, 1], "tiles of 16 queries in a row");
        assert_eq!(decoder.geometry().unwrap().block, [128, 1, 1]);
    }

    #[test]
    fn few_samples_share_a_stage_and_all_formats_fill_their_lanes() {
        let one_level = encoder().queries(40_000).levels([(200, 200)]);
        let configuration = configured(one_level).unwrap();
        assert!(configuration.knobs.contains(&("TILE_WIDTH", 16)), "four runs of four queries");
        for (channels, dtype) in
            [(16, DType::F16), (64, DType::Bf16), (64, DType::F32), (24, DType::F16)]
        {
            configured(encoder().channels(channels).dtype(dtype)).unwrap();
        }
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_the_reason() {
        for (problem, reason) in [
            (encoder().channels(33), "33 channels"),
            (encoder().channels(512), "512 channels"),
            (encoder().levels([(1, 300)]), "1 x 300"),
            (encoder().points(0), "no points"),
        ] {
            let error = configured(problem).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
