// One walk over the samples of neighbouring queries, for kernels that gather pixels in 16-byte chunks.
//
// Who owns what. ROW_LANES neighbouring lanes read a pixel together. Such a group owns one (query, head)
// while the warp gathers; the warp's groups are WARP_QUERIES x WARP_HEADS of them. For everything else a lane
// owns a quad: four samples of one (query, head). Neighbouring lanes own neighbouring quads, so that what the
// source reads arrives in whole lines.
//
// A stage. Every lane gets its quad from the source and writes the data for the gather to the warp's own
// shared memory; then all groups gather. With many samples a (query, head) takes several stages; with few,
// one stage serves several runs of WARP_QUERIES queries, gathered one after another. Warps never wait for
// each other.
//
// The source provides the samples (sample_source.cuh). The task defines the gather:
//   place(quad, first, packets)        the owner computes its quad; the quad's packets are GROUPS apart
//   gather(item, run, stage, quads)    all groups: quads `stage`, `stage` + 1, ... of a run, from packets_of
//   finish(source, row, first, packets, share)  if FINISHES: the owner again, once its stage is gathered; all
//                                      lanes if Operator::SHARES_ROWS
#pragma once

#include "query_rasters.cuh"
#include "sample_source.cuh"

namespace msda {

// One image and the heads that a warp walks together.
struct HeadGroup {
    int batch;
    int first_head;
};

// The division of a warp, chosen by src/variants/query_walk.rs. If there are too few rows to fill the GPU, a
// warp takes one run, or several warps share a (query, head), one stage each.
struct QueryWalk {
    static constexpr int ROW_LANES = MSDA_ROW_LANES;
    static constexpr int WARP_HEADS = MSDA_WARP_HEADS;
    static constexpr int GROUPS = 32 / ROW_LANES;
    static constexpr int WARP_QUERIES = GROUPS / WARP_HEADS;
    static constexpr int QUADS = (SAMPLES + 3) / 4;  // of one (query, head)
    static constexpr int STAGE_QUADS = MSDA_STAGE_QUADS;
    static constexpr int ITEM_QUADS = MSDA_ITEM_QUADS;  // walked by one warp
    static constexpr int ITEM_PARTS = (QUADS + ITEM_QUADS - 1) / ITEM_QUADS;
    static constexpr int RUNS = MSDA_RUNS;
    static constexpr int GROUP_PACKETS = MSDA_GROUP_PACKETS;  // of a quad, in shared memory
    static constexpr int ITEM_QUERIES = RUNS * WARP_QUERIES;  // neighbours in a row of the raster
    static constexpr int HEAD_GROUPS = HEADS / WARP_HEADS;
    static constexpr int QUAD_PACKETS = GROUP_PACKETS * GROUPS;
    static constexpr int WARP_PACKETS = RUNS * STAGE_QUADS * QUAD_PACKETS;
    static_assert(HEADS > 0 && HEADS % WARP_HEADS == 0, "heads are compiled in, and groups of them whole");
    static_assert(GROUPS % WARP_HEADS == 0, "every group has a query and a head");
    static_assert(RUNS * STAGE_QUADS <= ROW_LANES, "a lane owns one quad");
    static_assert(RUNS == 1 || QUADS == STAGE_QUADS, "several runs only where one stage is all");

    // The column of a group's packets among the GROUPS of a quad. Lanes that write together own neighbouring
    // quads, whose rows start at the same bank or a few apart; the twist keeps them apart.
    MSDA_DEVICE static int column(int group, int quad) {
        return (group ^ (GROUPS >= 8 ? quad * (GROUPS / 4) : quad * GROUPS / 8)) % GROUPS;
    }

    // The head group with this number, counted over images.
    MSDA_DEVICE static HeadGroup head_group(int number) {
        return {number / HEAD_GROUPS, number % HEAD_GROUPS * WARP_HEADS};
    }

    int lane = threadIdx.x % 32;
    // This lane's group, and its query and head, during the gather.
    int group = lane / ROW_LANES;
    int group_query = group / WARP_HEADS;
    int group_head = group % WARP_HEADS;
    // This lane's quad. Lanes that share a row sum by halves, so their number is a power of two; lanes past
    // the last quad read the last quad too.
    static constexpr int STAGE_LANES = Operator::SHARES_ROWS ? next_power_of_two(STAGE_QUADS) : STAGE_QUADS;
    int row_lane = lane % STAGE_LANES;
    int own_quad = Operator::SHARES_ROWS ? at_most(row_lane, STAGE_QUADS - 1) : row_lane;
    int own_group = lane / STAGE_LANES % GROUPS;
    int own_run = lane / (STAGE_LANES * GROUPS);
    Packet16* warp_packets = reinterpret_cast<Packet16*>(shared_memory()) + threadIdx.x / 32 * WARP_PACKETS;
    Packet16* own_packets =
        warp_packets + (own_run * STAGE_QUADS + own_quad) * QUAD_PACKETS + column(own_group, own_quad);

    // The packets of this lane's group for quad `quad` of the stage.
    MSDA_DEVICE Packet16* packets_of(int run, int quad) const {
        return warp_packets + (run * STAGE_QUADS + quad) * QUAD_PACKETS + column(group, quad);
    }

    // The row of an item's first query and head.
    MSDA_DEVICE static long long first_row(const CallShape& shape, const HeadGroup& heads, const Item& item) {
        return (static_cast<long long>(heads.batch) * shape.queries + item.query) * HEADS + heads.first_head;
    }

    // Walks the quads of an item from `first_quad` on. All lanes together.
    template <typename Source, typename Task>
    MSDA_DEVICE void walk(const Item& item, long long first_row, int first_quad, const Source& source,
                          Task& task) const {
        const int own_query = own_run * WARP_QUERIES + own_group / WARP_HEADS;
        const long long own_row =
            first_row + at_most(own_query, item.queries - 1) * HEADS + own_group % WARP_HEADS;
        const auto begun = source.template begin<STAGE_QUADS == QUADS>(own_row, row_lane, STAGE_LANES);
        const typename Source::Row row = begun.row;
#pragma unroll 1
        for (int stage = first_quad; stage < at_most(first_quad + ITEM_QUADS, QUADS); stage += STAGE_QUADS) {
            const int quads = at_most(STAGE_QUADS, QUADS - stage);
            const bool owns = own_run < RUNS && own_quad < quads;
            const int own_first = 4 * (stage + own_quad);
            // No branch if lanes share rows and every lane has a quad, because compilers would move the
            // quad's loads behind the branch. Two lanes with the same quad write the same packets.
            constexpr bool ALL_SEE_ONE =
                Operator::SHARES_ROWS && STAGE_QUADS == QUADS && RUNS * STAGE_LANES == ROW_LANES;
            if (ALL_SEE_ONE || owns) task.place(source.quad(begun, own_first), own_first, own_packets);
            sync_warp();
#pragma unroll 1
            for (int run = 0; run < RUNS; ++run) task.gather(item, run, stage, quads);
            if constexpr (Task::FINISHES) {
                sync_warp();
                const bool has_quad = owns && row_lane < STAGE_QUADS;
                const bool stores = has_quad && own_query < item.queries;
                // If lanes share rows, all lanes call it, because it may sum over them.
                if (Operator::SHARES_ROWS || stores) {
                    const RowShare share = {row_lane, STAGE_LANES, has_quad, stores};
                    task.finish(source, row, own_first, own_packets, share);
                }
            }
            sync_warp();  // the next stage or item overwrites packets that other lanes may still read
        }
    }
};

}  // namespace msda
