// Where samples come from.
//
// A kernel that walks samples asks a source for them and hands gradients to a sink (sample_sink.cuh). The
// kernel knows no tensor of either. An operator with other samples (from offsets and logits, for example)
// brings its own source and sink. The walk (query_walk.cuh) and the use of a sample stay as they are.
//
// A source has
//   Row                  what the samples of a (query, head) have in common, kept in registers
//   row(n)               that of row n, counted over images, queries and heads; a lane by itself
//   row(n, part, parts)  the same, worked out by `parts` neighbouring lanes that ask for the same row, this
//                        one being number `part`: each looks at its share and they shuffle. All lanes of the
//                        warp call it together; the last group may be cut short, and its row is not used
//   unprepared_row(n)    a row that knows locations. If Operator::SHARES_ROWS, weights need row(n, ...)
//   quad(row, first)     four samples from `first` on, a multiple of four; what lies past the last does not
//                        count
//   location(row, s)     of one sample
//   attention(row, s)
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

// Which quad of a row a lane has, and whether it may write.
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
