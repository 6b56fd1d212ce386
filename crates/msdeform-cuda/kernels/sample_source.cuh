// A source provides samples.
//
// A kernel that walks samples reads them from a source and gives gradients to a sink (sample_sink.cuh). The
// kernel itself knows none of their tensors. An operator with other samples (from offsets and logits, for
// example) brings its own source and sink. The walk (query_walk.cuh) and the use of a sample stay as they
// are.
//
// A source has
//   Row                  what the samples of a (query, head) have in common, kept in registers
//   row(n)               the Row of row n, counted over images, queries and heads, by one lane alone
//   row(n, part, parts)  the same, by `parts` neighbouring lanes that need the same row; this lane has number
//                        `part`. Each lane reads its share, and they shuffle. All lanes of the
//                        warp call it together; the last group may be cut short, and its row is not used
//   unprepared_row(n)    a row that knows locations. If Operator::SHARES_ROWS, weights need row(n, ...)
//   quad(row, first)     four samples from `first` on, a multiple of four; samples past the last do not count
//   location(row, s)     the location of sample s
//   attention(row, s)    its attention weight
//   begin<WHOLE_ROW>(n, part, parts)
//                        as row(n, part, parts), for lanes that read a quad each; if these are all quads of
//                        the row (WHOLE_ROW), the source may read them now. The result has a `row`
//   quad(begun, first)   as quad(row, first)
#pragma once

#include "chunked_sample.cuh"

namespace msda {

struct Quad {
    float x[4];
    float y[4];
    float attention[4];
};

// The quad of a row that a lane has, and whether the lane may write.
struct RowShare {
    int part;
    int parts;
    bool owns;    // there is such a quad
    bool stores;  // and the row is this warp's
};

}  // namespace msda

// The operator's sample_source(params).
#if MSDA_FROM_OFFSETS
#include "offset_samples.cuh"
#else
#include "plain_samples.cuh"
#endif
