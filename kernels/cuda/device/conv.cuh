// One row of a head behind the short causal convolution, four channels in a thread, one warp for the head: what the forms for many rows
// and for decode share, so that both have the same bits.
#pragma once
#include "four.cuh"

constexpr int TAPS = 4;

// SiLU of the sum over rows r0 to r3, oldest first, of taps `weights` of each channel times values; of `unit` length times `scale`.
template <class E>
DEV Four convolved(const Four (&weights)[4], const Four& r0, const Four& r1, const Four& r2, const Four& r3, bool unit, float scale) {
  Four y = {};
  float squares = 0.f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    y.at[j] += weights[j].at[0] * r0.at[j];
    y.at[j] += weights[j].at[1] * r1.at[j];
    y.at[j] += weights[j].at[2] * r2.at[j];
    y.at[j] += weights[j].at[3] * r3.at[j];
    y.at[j] = silu_for<E>(y.at[j]);
    squares += y.at[j] * y.at[j];
  }
  if (!unit) return y;
  for (int m = 16; m; m >>= 1) squares += shuffle_xor(squares, m);
  const float factor = scale / sqrtf(squares + 1e-6f);
#pragma unroll
  for (int j = 0; j < 4; ++j) y.at[j] *= factor;
  return y;
}
