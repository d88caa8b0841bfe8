// Norms of rows, four values at a time: what norms by themselves and those behind other work share, so that both have the same bits.
#pragma once
#include "four.cuh"

// Sum over the threads of a row: a block, or one of its four warps where rows are narrow.
template <int THREADS> DEV float row_sum(float x) {
  SHARED float part[4];
  if (THREADS == 128) return block_sum<128>(x, part);
  for (int m = 16; m; m >>= 1) x += shuffle_xor(x, m);
  return x;
}

// Fours of one row: those of this thread, THREADS for each row. `whole` says that a row is whole fours.
#define OWN_FOURS(i) for (uint32_t i = 4 * first; i < (uint32_t)width; i += 4 * THREADS)

template <int THREADS, class E> DEV float squares_of(const E* __restrict__ row, int first, int width) {
  const bool whole = width % 4 == 0;
  float squares = 0.f;
  // Unrolled so that all reads of a pass are on their way before the first is used: of one row there is nothing else to do.
#pragma unroll 4
  OWN_FOURS(i) {
    const Four v = read_part(row + i, whole, width - i);
#pragma unroll
    for (int j = 0; j < 4; ++j) squares += v.at[j] * v.at[j];
  }
  return squares;
}
template <int THREADS, class E> DEV float inverse_rms(const E* __restrict__ row, int first, int width, float eps) {
  return 1.f / sqrtf(row_sum<THREADS>(squares_of<THREADS>(row, first, width)) / width + eps);
}

// Rows up to this wide take a warp each.
constexpr int NARROW_NORM = 256;

// x / rms(x) * (offset + w), offset 1 for zero-centred weights; `scale` is one over the rms.
DEV Four normed(Four x, const Four& weight, float scale, float offset) {
#pragma unroll
  for (int j = 0; j < 4; ++j) x.at[j] *= scale * (offset + weight.at[j]);
  return x;
}
// sum += more, as it is stored in the format of `E`, and its squares to `squares`.
template <class E> DEV void add_four(Four& sum, const Four& more, float& squares) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    E stored;
    store(stored, sum.at[j] + more.at[j]);
    sum.at[j] = f32(stored);
    squares += sum.at[j] * sum.at[j];
  }
}
// x / rms(x) * w * silu(z).
DEV Four gated(Four x, const Four& weight, const Four& gate, float scale) {
#pragma unroll
  for (int j = 0; j < 4; ++j) x.at[j] *= scale * weight.at[j] * silu(gate.at[j]);
  return x;
}
