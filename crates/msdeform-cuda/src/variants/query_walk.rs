//! How a warp is divided by `kernels/query_walk.cuh`: worked out here, compiled into the kernels.

use super::Call;

/// Samples of a quad, which a lane owns.
const QUAD: usize = 4;
const PACKET_BYTES: usize = 16;

/// Who owns what in a warp.
#[derive(Clone, Copy)]
pub(super) struct QueryWalk {
    /// Lanes that read a pixel together: a group.
    row_lanes: usize,
    /// Neighbouring heads of a warp.
    warp_heads: usize,
    /// Quads of a (query, head) that are placed before they are gathered.
    stage_quads: usize,
    /// Quads of a (query, head) that one warp walks.
    item_quads: usize,
    /// Warps that share a (query, head).
    pub(super) item_parts: usize,
    /// Rows of queries that a stage serves, one after another.
    pub(super) runs: usize,
    /// Packets of shared memory of a quad.
    group_packets: usize,
}

impl QueryWalk {
    /// `spread`: 0, everything at once; 1, where there are few rows a warp takes one run; 2, stages are half as long, and each
    /// is another warp's.
    pub(super) fn of(
        call: &Call<'_>,
        row_lanes: usize,
        warp_heads: usize,
        group_packets: usize,
        spread: i64,
    ) -> Self {
        let quads = call.problem.samples().div_ceil(QUAD);
        let full = quads.min(row_lanes);
        let stage_quads = if spread > 1 { full.div_ceil(2) } else { full };
        let item_quads = if spread > 1 { stage_quads } else { quads };
        let runs = if spread > 0 { 1 } else { row_lanes / stage_quads.next_power_of_two() };
        let item_parts = quads.div_ceil(item_quads);
        Self { row_lanes, warp_heads, stage_quads, item_quads, item_parts, runs, group_packets }
    }

    const fn groups(&self) -> usize {
        32 / self.row_lanes
    }

    /// Whether a stage has all samples of its rows.
    pub(super) const fn has_whole_rows(&self) -> bool {
        self.item_parts == 1 && self.stage_quads == self.item_quads
    }

    /// Rows of the output that a warp computes, or its share of them, at a time.
    pub(super) const fn item_rows(&self) -> usize {
        self.runs * self.groups()
    }

    /// Queries of an item: neighbours in a row of the raster.
    pub(super) const fn item_queries(&self) -> usize {
        self.item_rows() / self.warp_heads
    }

    /// Images x groups of heads.
    pub(super) fn head_groups(&self, call: &Call<'_>) -> usize {
        call.problem.batch() * (call.problem.heads() / self.warp_heads)
    }

    /// Shared memory of a warp.
    pub(super) const fn warp_bytes(&self) -> usize {
        self.runs * self.stage_quads * self.groups() * self.group_packets * PACKET_BYTES
    }

    /// What the header is compiled with.
    pub(super) fn constants(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let numbers = [
            ("ROW_LANES", self.row_lanes),
            ("WARP_HEADS", self.warp_heads),
            ("STAGE_QUADS", self.stage_quads),
            ("ITEM_QUADS", self.item_quads),
            ("RUNS", self.runs),
            ("GROUP_PACKETS", self.group_packets),
        ];
        numbers.into_iter().map(|(name, number)| (name, number as i64))
    }
}
