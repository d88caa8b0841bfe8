// Products of few rows: a weight streams once through the registers of warps, and what it costs is its bytes.
//
// A warp takes 16 rows of a weight and up to eight rows of activations over a range of the inner axis, in chunks of 32. Lane 4 g + t holds
// 16 bytes of weight rows g and g + 8 and of activation row g: inner indices 8 t to 8 t + 7 of the chunk. A sum does not mind which terms
// come first, so these four pairs are the operands of two mma as they lie. The next chunks are on their way all the time.
#pragma once
#include "tensor.cuh"

constexpr int STREAM_OUTER = 16, STREAM_ROWS = 8, STREAM_CHUNK = 32, STREAM_WARPS = 8;

// Chunks [begin, end) of rows g and g + 8 of a weight, from 8 t on, of which AHEAD are on their way.
template <int AHEAD> struct Stream {
  const bf16 *near, *far;
  int left;  // chunks that were not asked for
  uint4 weight[AHEAD][2];

  DEV_MEMBER Stream(const bf16* near_row, const bf16* far_row, int begin, int end)
      : near(near_row + begin * STREAM_CHUNK), far(far_row + begin * STREAM_CHUNK), left(end - begin) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (i < left) ask(i, i);
  }
  DEV_MEMBER void ask(int i, int chunk) {
    weight[i][0] = read_once((const uint4*)(near + chunk * STREAM_CHUNK));
    weight[i][1] = read_once((const uint4*)(far + chunk * STREAM_CHUNK));
  }
  // sums [outer g (+ 8), rows 2 t, 2 t + 1] += W X^T. row: row g of the activations from 8 t and the first chunk on, or null where there
  // is none. IS_NEAR: they lie in shared memory.
  template <bool IS_NEAR = false> DEV_MEMBER void multiply(float (&sums)[4], const bf16* row) {
    uint4 x[AHEAD];
    auto ask_row = [&](int i, int chunk) {
      const uint4* const from = (const uint4*)(row + chunk * STREAM_CHUNK);
      x[i] = row == nullptr ? uint4{0, 0, 0, 0} : IS_NEAR ? *from : read_ahead(from);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (i < left) ask_row(i, i);
    for (; left > 0; left -= AHEAD) {
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (i >= left) break;
        const uint4 a = weight[i][0], b = weight[i][1];
        const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
        mma_bf16(sums, first, x[i].x, x[i].y);
        mma_bf16(sums, second, x[i].z, x[i].w);
        if (i + AHEAD >= left) continue;
        ask(i, i + AHEAD);
        ask_row(i, i + AHEAD);
      }
      near += AHEAD * STREAM_CHUNK;
      far += AHEAD * STREAM_CHUNK;
      if (row != nullptr) row += AHEAD * STREAM_CHUNK;
    }
  }
};

// The inner axis is shared out among `split` warps that follow each other; where the share of this one begins and ends, in chunks.
struct Share { int begin, end; };
DEV Share share_of(int inner, int split) {
  const int chunks = inner / STREAM_CHUNK, each = (chunks + split - 1) / split, begin = (int)(threadIdx.x >> 5) % split * each;
  return {begin, begin + each < chunks ? begin + each : chunks};
}
// Adds the sums of the `split` warps of a tile, in their order: the first of them has the result.
DEV void add_shares(float (&sums)[4], int split) {
  SHARED float parts[STREAM_WARPS][32][4];
  if (split == 1) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  sync();  // the last sums have been read
  for (int e = 0; e < 4; ++e) parts[warp][lane][e] = sums[e];
  sync();
  if (warp % split) return;
  for (int other = 1; other < split; ++other)
    for (int e = 0; e < 4; ++e) sums[e] += parts[warp + other][lane][e];
}
