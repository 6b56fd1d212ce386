// Samples of an operator in a backward, one by one, for kernels that take any number of levels and samples.
//
//   AnySample, any_sample(params, n, s)        sample s of row n, counted over images, queries and heads
//   any_sample(params, n, level, point)        by its place on a level
//   number_of(params, sample)                  over all rows
//   locate_sample, sample_weight, reads_nearest_pixel
//                                              as in any_samples.cuh
#pragma once

#if MSDA_FROM_OFFSETS
#include "offset_any_backward.cuh"
#else
#include "plain_any.cuh"
#endif
