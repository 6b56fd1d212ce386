// Samples of an operator in a forward, one by one, for kernels that take any number of levels and samples.
//
//   AnyRow, begin_row(params, n, lane, lanes)  row n, counted over images, queries and heads; worked out by
//                                              `lanes` neighbouring lanes together
//   AnySample, any_sample(params, row, s)      sample s of the row
//   locate_sample(params, sample, l, level)    where it lies, on its level l
//   sample_weight(params, sample)
//   reads_nearest_pixel()                      whether samples read the nearest pixel instead of four around
#pragma once

#if MSDA_FROM_OFFSETS
#include "offset_any.cuh"
#else
#include "plain_any.cuh"
#endif
