// Several products of the same few rows in one launch.
#include "stream.cuh"

// y_m [rows, outer_m] = x [rows, inner] w_m [outer_m, inner]^T for up to four weights; an outer of 0 is none. Grid: tiles of 16 outputs of
// all weights by the tiles of a block, eights of rows. A block has `split` warps for each of its tiles. inner is a multiple of 32.
template <int AHEAD, class Out>
DEV void product_few(const bf16* __restrict__ x, const bf16* w0, const bf16* w1, const bf16* w2, const bf16* w3, Out* y0, Out* y1, Out* y2, Out* y3,
                     int outer0, int outer1, int outer2, int outer3, int rows, int inner, int split) {
  let_others_start();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, row0 = blockIdx.y * STREAM_ROWS;
  auto tiles = [](int outer) { return (outer + STREAM_OUTER - 1) / STREAM_OUTER; };
  int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split, outer = outer0;
  const bf16* weight = w0;
  Out* y = y0;
  auto next = [&](const bf16* w, Out* out, int o) {
    if (tile < tiles(outer)) return;
    tile -= tiles(outer);
    weight = w;
    y = out;
    outer = o;
  };
  next(w1, y1, outer1);
  next(w2, y2, outer2);
  next(w3, y3, outer3);
  const bool is_there = tile < tiles(outer);  // the last block may have a tile too many
  auto at = [&](int o) { return weight + (size_t)(o < outer ? o : outer - 1) * inner + 8 * t; };
  const Share share = share_of(inner, split);
  float sums[4] = {};
  // The weight is on its way before the rows are there.
  Stream<AHEAD> stream(at(tile * STREAM_OUTER + g), at(tile * STREAM_OUTER + g + 8), share.begin, is_there ? share.end : share.begin);
  await_inputs();
  const bf16* const row = row0 + g < rows ? x + (size_t)(row0 + g) * inner + 8 * t + share.begin * STREAM_CHUNK : nullptr;
  stream.multiply(sums, row);
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
    product_few<AHEAD>(x, w0, w1, w2, w3, y0, y1, y2, y3, outer0, outer1, outer2, outer3, rows, inner, split);                       \
  }                                                                                                                                  \
  REGISTER(product_few_##suffix)
// Many warps with four chunks on their way each, or few with all that they will ever read.
PRODUCT_FEW(bf16, bf16, 4)
PRODUCT_FEW(float, f32, 4)
PRODUCT_FEW(bf16, bf16_deep, 16)
PRODUCT_FEW(float, f32_deep, 16)
