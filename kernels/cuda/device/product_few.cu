// Several products of the same few rows in one launch.
#include "stream.cuh"

// y_m [rows, outer_m] = x [rows, inner] w_m [outer_m, inner]^T for up to four weights; an outer of 0 is none. Grid: tiles of 16 outputs of
// all weights by the tiles of a block, eights of rows. A block has `split` warps for each of its tiles. inner is a multiple of 32, of a
// weight of codes, which has factors, of 64.
template <int AHEAD, int CODES, class Out>
DEV void product_few(const bf16* __restrict__ x, const void* w0, const void* w1, const void* w2, const void* w3, const float* f0, const float* f1,
                     const float* f2, const float* f3, Out* y0, Out* y1, Out* y2, Out* y3, int outer0, int outer1, int outer2, int outer3,
                     int rows, int inner, int split) {
  let_others_start();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, row0 = blockIdx.y * STREAM_ROWS;
  auto tiles = [](int outer) { return (outer + STREAM_OUTER - 1) / STREAM_OUTER; };
  int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split, outer = outer0;
  const void* weight = w0;
  const float* factors = f0;
  Out* y = y0;
  auto next = [&](const void* w, const float* f, Out* out, int o) {
    if (tile < tiles(outer)) return;
    tile -= tiles(outer);
    weight = w;
    factors = f;
    y = out;
    outer = o;
  };
  next(w1, f1, y1, outer1);
  next(w2, f2, y2, outer2);
  next(w3, f3, y3, outer3);
  const bool is_there = tile < tiles(outer);  // the last block may have a tile too many
  auto at = [&](int o) { return (size_t)(o < outer ? o : outer - 1); };
  const size_t near = at(tile * STREAM_OUTER + g), far = at(tile * STREAM_OUTER + g + 8);
  const bf16* const row = row0 + g < rows ? x + (size_t)(row0 + g) * inner : nullptr;
  float sums[4] = {};
  if (is_there && CODES > 0 && factors != nullptr) {
    auto of = [&](size_t o) { return row_of((const uint8_t*)weight, factors, o, inner); };
    stream_product<(CODES > 0 ? CODES : 1), true>(sums, of(near), of(far), inner, split, row);
  } else if (is_there) {
    auto of = [&](size_t o) { return row_of((const bf16*)weight, nullptr, o, inner); };
    stream_product<AHEAD, true>(sums, of(near), of(far), inner, split, row);
  } else {
    await_inputs();
  }
  add_shares(sums, split);
  if (!is_there || warp % split) return;
  for (int e = 0; e < 4; ++e) {
    const int o = tile * STREAM_OUTER + g + 8 * (e >> 1), row = row0 + 2 * t + (e & 1);
    if (o < outer && row < rows) store(y[(size_t)row * outer + o], sums[e]);
  }
}
#define PRODUCT_FEW(Out, suffix, AHEAD)                                                                                              \
  KERNEL(32 * STREAM_WARPS, product_few_##suffix)(const bf16* x, const bf16* w0, const bf16* w1, const bf16* w2, const bf16* w3,     \
                                                  Out* y0, Out* y1, Out* y2, Out* y3, int outer0, int outer1, int outer2,            \
                                                  int outer3, int rows, int inner, int split) {                                      \
    product_few<AHEAD, 0>(x, w0, w1, w2, w3, nullptr, nullptr, nullptr, nullptr, y0, y1, y2, y3, outer0, outer1, outer2, outer3, rows, inner, \
                          split);                                                                                                    \
  }                                                                                                                                  \
  REGISTER(product_few_##suffix)
// Many warps with four chunks on their way each, or few with all that they will ever read.
PRODUCT_FEW(bf16, bf16, 4)
PRODUCT_FEW(float, f32, 4)
PRODUCT_FEW(bf16, bf16_deep, 16)
PRODUCT_FEW(float, f32_deep, 16)
// The same where weights of codes are among them.
#define PRODUCT_FEW_CODES(Out, suffix, AHEAD, CODES)                                                                                 \
  KERNEL(32 * STREAM_WARPS, product_few_codes_##suffix)(const bf16* x, const void* w0, const void* w1, const void* w2, const void* w3, \
                                                        const float* f0, const float* f1, const float* f2, const float* f3, Out* y0, \
                                                        Out* y1, Out* y2, Out* y3, int outer0, int outer1, int outer2, int outer3,   \
                                                        int rows, int inner, int split) {                                            \
    product_few<AHEAD, CODES>(x, w0, w1, w2, w3, f0, f1, f2, f3, y0, y1, y2, y3, outer0, outer1, outer2, outer3, rows, inner, split); \
  }                                                                                                                                  \
  REGISTER(product_few_codes_##suffix)
PRODUCT_FEW_CODES(bf16, bf16, 4, 4)
PRODUCT_FEW_CODES(float, f32, 4, 4)
PRODUCT_FEW_CODES(bf16, bf16_deep, 16, 8)
PRODUCT_FEW_CODES(float, f32_deep, 16, 8)
