// Products of few rows: a weight streams once through the registers of warps, and what it costs is its bytes.
//
// A warp takes 16 rows of a weight and up to eight rows of activations over a range of the inner axis, in chunks. Lane 4 g + t holds
// 16 bytes of weight rows g and g + 8 and as many terms of activation row g: of bf16 inner indices 8 t to 8 t + 7 of a chunk of 32, of codes
// 16 t to 16 t + 15 of one of 64. A sum does not mind which terms come first, so each four pairs are the operands of two mma as they lie. The
// next chunks are on their way all the time.
#pragma once
#include "codes.cuh"

constexpr int STREAM_OUTER = 16, STREAM_ROWS = 8, STREAM_CHUNK = 32, STREAM_WARPS = 8;

// Chunks [begin, end) of rows g and g + 8 of a weight, from EACH t on, of which AHEAD are on their way. Codes come with the factors of both
// rows, which act on the sum of a chunk.
template <int AHEAD, class W = bf16> struct Stream {
  static constexpr int EACH = 16 / sizeof(W), CHUNK = 4 * EACH, UNITS = EACH / 8;
  static constexpr bool IS_CODED = sizeof(W) == 1;
  static_assert(!IS_CODED || CHUNK == FACTOR_COLUMNS, "a chunk has one factor");
  const W *near, *far;
  const float *near_factors, *far_factors;
  int left;  // chunks that were not asked for
  uint4 weight[AHEAD][2];
  float factor[AHEAD][2];

  DEV_MEMBER Stream(const W* near_row, const W* far_row, int begin, int end, const float* near_factors = nullptr, const float* far_factors = nullptr)
      : near(near_row + begin * CHUNK), far(far_row + begin * CHUNK), near_factors(near_factors + (IS_CODED ? begin : 0)),
        far_factors(far_factors + (IS_CODED ? begin : 0)), left(end - begin) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (i < left) ask(i, i);
  }
  DEV_MEMBER void ask(int i, int chunk) {
    weight[i][0] = read_once((const uint4*)(near + chunk * CHUNK));
    weight[i][1] = read_once((const uint4*)(far + chunk * CHUNK));
    if constexpr (IS_CODED) {
      factor[i][0] = read_ahead(near_factors + chunk);
      factor[i][1] = read_ahead(far_factors + chunk);
    }
  }
  // sums [outer g (+ 8), rows 2 t, 2 t + 1] += W X^T. row: row g of the activations from EACH t and the first chunk on, or null where there
  // is none. IS_NEAR: they lie in shared memory.
  template <bool IS_NEAR = false> DEV_MEMBER void multiply(float (&sums)[4], const bf16* row) {
    uint4 x[AHEAD][UNITS];
    auto ask_row = [&](int i, int chunk) {
#pragma unroll
      for (int u = 0; u < UNITS; ++u) {
        const uint4* const from = (const uint4*)(row + chunk * CHUNK) + u;
        x[i][u] = row == nullptr ? uint4{0, 0, 0, 0} : IS_NEAR ? *from : read_ahead(from);
      }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (i < left) ask_row(i, i);
    for (; left > 0; left -= AHEAD) {
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (i >= left) break;
        add(sums, weight[i], x[i], factor[i]);
        if (i + AHEAD >= left) continue;
        ask(i, i + AHEAD);
        ask_row(i, i + AHEAD);
      }
      near += AHEAD * CHUNK;
      far += AHEAD * CHUNK;
      if constexpr (IS_CODED) {
        near_factors += AHEAD;
        far_factors += AHEAD;
      }
      if (row != nullptr) row += AHEAD * CHUNK;
    }
  }
  DEV_MEMBER static void add(float (&sums)[4], const uint4 (&w)[2], const uint4 (&x)[UNITS], const float (&factor)[2]) {
    const uint4 a = w[0], b = w[1];
    if constexpr (IS_CODED) {
      const uint32_t near[4] = {a.x, a.y, a.z, a.w}, far[4] = {b.x, b.y, b.z, b.w};
      float part[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 of = x[j >> 1];
        const uint32_t both[4] = {bf16_of_codes(near[j], false), bf16_of_codes(far[j], false), bf16_of_codes(near[j], true), bf16_of_codes(far[j], true)};
        mma_bf16(part, both, j & 1 ? of.z : of.x, j & 1 ? of.w : of.y);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e] += factor[e >> 1] * part[e];
    } else {
      const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
      mma_bf16(sums, first, x[0].x, x[0].y);
      mma_bf16(sums, second, x[0].z, x[0].w);
    }
  }
};

// The inner axis is shared out among `split` warps that follow each other; where the share of this one begins and ends, in chunks.
struct Share { int begin, end; };
template <int CHUNK = STREAM_CHUNK> DEV Share share_of(int inner, int split) {
  const int chunks = inner / CHUNK, each = (chunks + split - 1) / split, begin = (int)(threadIdx.x >> 5) % split * each;
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

// Rows of a weight, and of codes the factors of each of their chunks.
template <class W> struct WeightRow {
  const W* values;
  const float* factors;
};
template <class W> DEV WeightRow<W> row_of(const W* weight, const float* factors, size_t row, int inner) {
  return {weight + row * inner, sizeof(W) == 1 ? factors_of(factors, row, inner) : nullptr};
}
// Two rows of a weight of `inner` terms, of which each of the `split` warps of a tile asks for its share; for nothing where there is no tile.
template <int AHEAD, class W> DEV Stream<AHEAD, W> ask_share(const WeightRow<W>& near, const WeightRow<W>& far, int inner, int split, bool is_there) {
  using Of = Stream<AHEAD, W>;
  const int own = Of::EACH * (threadIdx.x & 3);
  const Share share = share_of<Of::CHUNK>(inner, split);
  return Of(near.values + own, far.values + own, share.begin, is_there ? share.end : share.begin, near.factors, far.factors);
}
// Where the terms of a lane begin in a row of activations.
template <class W> DEV int first_term(int inner, int split) {
  using Of = Stream<1, W>;
  return Of::EACH * (threadIdx.x & 3) + share_of<Of::CHUNK>(inner, split).begin * Of::CHUNK;
}
