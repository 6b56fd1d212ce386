// The samples of an operator, one by one, for kernels that take any number of levels and samples.
//
// A forward has
//   AnyRow, begin_row(params, n, lane, lanes)  row n, counted over images, queries and heads; worked out by
//                                              `lanes` neighbouring lanes together
//   AnySample, any_sample(params, row, s)      sample s of the row
//   locate_sample(params, sample, l, level)    where it lies, on its level l
//   sample_weight(params, sample)
// A backward has the same with n instead of a row, and
//   any_sample(params, n, level, point)        by its place on a level
//   needs_slopes()                             whether it computes gradients of locations
//   number_of(params, sample)                  over all rows
//   store_weight_gradient(params, number, gradient)
//   store_location_gradient(params, number, axis, has_slope, gradient)   zero if the sample has no slope
#pragma once

#include "numeric.cuh"
#include "params.cuh"

#if MSDA_FROM_OFFSETS
#include "offset_any.cuh"
#else
#include "plain_any.cuh"
#endif
