// Several products of the same few rows in one launch.
#include "norm.cuh"
#include "stream.cuh"

// Up to four weights [outer, inner] and products [rows, outer]; an outer of 0 is none. Weights with factors are codes.
template <class Out> struct Parts {
  const void* weights[4];
  const float* factors[4];
  Out* y[4];
  int outer[4];
};

// y_m = x w_m^T. Grid: tiles of 16 outputs of all weights by the tiles of a block, eights of rows. A block has `split` warps for each of its
// tiles. inner is a multiple of 32, of a weight of codes of 64. `wait` waits, and says where the rows then lie, `stride` values apart;
// IS_NEAR: in shared memory. CODES: chunks of codes on their way, 0 where there are none among the weights.
template <int AHEAD, int CODES, bool IS_NEAR, class Out, class Wait>
DEV void product_few(const Parts<Out>& parts, Wait wait, int stride, int rows, int inner, int split) {
  let_others_start();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, row0 = blockIdx.y * STREAM_ROWS;
  auto tiles = [](int outer) { return (outer + STREAM_OUTER - 1) / STREAM_OUTER; };
  int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split, outer = parts.outer[0];
  const void* weight = parts.weights[0];
  const float* factors = parts.factors[0];
  Out* y = parts.y[0];
#pragma unroll
  for (int m = 1; m < 4; ++m)
    if (tile >= tiles(outer)) {
      tile -= tiles(outer);
      weight = parts.weights[m];
      factors = parts.factors[m];
      y = parts.y[m];
      outer = parts.outer[m];
    }
  const bool is_there = tile < tiles(outer);  // the last block may have a tile too many
  auto at = [&](int o) { return (size_t)(o < outer ? o : outer - 1); };
  const size_t near = at(tile * STREAM_OUTER + g), far = at(tile * STREAM_OUTER + g + 8);
  float sums[4] = {};
  // The weight is on its way before the rows are there.
  auto multiply = [&](auto stream, int first) {
    const bf16* const x = wait();
    stream.template multiply<IS_NEAR>(sums, row0 + g < rows ? x + (size_t)(row0 + g) * stride + first : nullptr);
  };
  if (CODES > 0 && factors != nullptr) {
    auto of = [&](size_t o) { return row_of((const uint8_t*)weight, factors, o, inner); };
    multiply(ask_share<(CODES > 0 ? CODES : 1)>(of(near), of(far), inner, split, is_there), first_term<uint8_t>(inner, split));
  } else {
    auto of = [&](size_t o) { return row_of((const bf16*)weight, nullptr, o, inner); };
    multiply(ask_share<AHEAD>(of(near), of(far), inner, split, is_there), first_term<bf16>(inner, split));
  }
  add_shares(sums, split);
  if (!is_there || warp % split) return;
  for (int e = 0; e < 4; ++e) {
    const int o = tile * STREAM_OUTER + g + 8 * (e >> 1), row = row0 + 2 * t + (e & 1);
    if (o < outer && row < rows) store(y[(size_t)row * outer + o], sums[e]);
  }
}
#define ROWS_OF(x)  \
  [&] {             \
    await_inputs(); \
    return x;       \
  }
#define PRODUCT_FEW(Out, suffix, AHEAD)                                                                                              \
  KERNEL(32 * STREAM_WARPS, product_few_##suffix)(const bf16* x, const bf16* w0, const bf16* w1, const bf16* w2, const bf16* w3,     \
                                                  Out* y0, Out* y1, Out* y2, Out* y3, int outer0, int outer1, int outer2,            \
                                                  int outer3, int rows, int inner, int split) {                                      \
    const Parts<Out> parts = {{w0, w1, w2, w3}, {}, {y0, y1, y2, y3}, {outer0, outer1, outer2, outer3}};                             \
    product_few<AHEAD, 0, false>(parts, ROWS_OF(x), inner, rows, inner, split);                                                      \
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
    const Parts<Out> parts = {{w0, w1, w2, w3}, {f0, f1, f2, f3}, {y0, y1, y2, y3}, {outer0, outer1, outer2, outer3}};               \
    product_few<AHEAD, CODES, false>(parts, ROWS_OF(x), inner, rows, inner, split);                                                  \
  }                                                                                                                                  \
  REGISTER(product_few_codes_##suffix)
PRODUCT_FEW_CODES(bf16, bf16, 4, 4)
PRODUCT_FEW_CODES(float, f32, 4, 4)
PRODUCT_FEW_CODES(bf16, bf16_deep, 16, 8)
PRODUCT_FEW_CODES(float, f32_deep, 16, 8)

// Norms of rows, or of the sums of two, which every block makes for itself: of one or two rows that is less than a launch. `add_norm` and
// `rms_norm`, bit for bit. All rows [rows, inner]; a row in shared memory begins `stride` values behind the last one, and behind them lies the
// weight.
struct NormedRows {
  const bf16 *x, *r;    // r: what is added to x, or null
  const float* weight;  // [inner]
  bf16 *sums, *normed;  // what the first block writes, or null; sums are not x, which other blocks still read
  float offset, eps;

  DEV_MEMBER const bf16* make(bf16* memory, int stride, int rows, int inner) const {
    SHARED float part[STREAM_WARPS];
    constexpr int THREADS = 128, EACH = 4, PASS = 4 * THREADS;  // of the norm by itself; fours of a thread on their way at once
    const int first = 4 * threadIdx.x;
    const bool works = threadIdx.x < THREADS, writes = blockIdx.x == 0;
    float* const near_weight = (float*)(memory + rows * stride);  // every thread's own: registers are short
    for (int i = first; works && i < inner; i += PASS) write_four(near_weight + i, read_four(weight + i));
    await_inputs();
    for (int number = 0; number < rows; ++number) {
      const size_t at = (size_t)number * inner;
      bf16* const row = memory + number * stride;
      float squares = 0.f;
      for (int from = first; works && from < inner; from += EACH * PASS) {
        Four old[EACH], more[EACH];
#pragma unroll
        for (int n = 0; n < EACH; ++n)
          if (const int i = from + n * PASS; i < inner) {
            old[n] = read_four(x + at + i);
            if (r != nullptr) more[n] = read_four(r + at + i);
          }
#pragma unroll
        for (int n = 0; n < EACH; ++n)
          if (const int i = from + n * PASS; i < inner) {
            if (r != nullptr) add_four<bf16>(old[n], more[n], squares);
            else
              for (int j = 0; j < 4; ++j) squares += old[n].at[j] * old[n].at[j];
            write_four(row + i, old[n]);
            if (writes && sums != nullptr) write_four(sums + at + i, old[n]);
          }
      }
      const float scale = 1.f / sqrtf(block_sum<THREADS>(squares, part) / inner + eps);
      for (int from = first; works && from < inner; from += EACH * PASS) {
#pragma unroll
        for (int n = 0; n < EACH; ++n)
          if (const int i = from + n * PASS; i < inner) {
            const Four y = ::normed(read_four(row + i), read_four(near_weight + i), scale, offset);
            write_four(row + i, y);
            if (writes && normed != nullptr) write_four(normed + at + i, y);
          }
      }
    }
    sync();
    return memory;
  }
};
#define NORMED_ROWS(...)                                                                    \
  DYNAMIC_SHARED(memory);                                                                   \
  const NormedRows normed_rows = {__VA_ARGS__};                                             \
  const int stride = inner + 8;                                                             \
  const auto wait = [&] { return normed_rows.make((bf16*)memory, stride, rows, inner); };

// The same of x / rms(x) * (offset + w), of as many blocks as stream at once.
KERNEL_OF_MANY(32 * STREAM_WARPS, 3, norm_product_few)(const bf16* x, const float* w, const bf16* w0, const bf16* w1, const bf16* w2,
                                                       const bf16* w3, bf16* y0, bf16* y1, bf16* y2, bf16* y3, int outer0, int outer1,
                                                       int outer2, int outer3, int rows, int inner, int split, float offset, float eps) {
  NORMED_ROWS(x, nullptr, w, nullptr, nullptr, offset, eps)
  const Parts<bf16> parts = {{w0, w1, w2, w3}, {}, {y0, y1, y2, y3}, {outer0, outer1, outer2, outer3}};
  product_few<4, 0, true>(parts, wait, stride, rows, inner, split);
}
REGISTER(norm_product_few)
KERNEL_OF_MANY(32 * STREAM_WARPS, 2, norm_product_few_codes)(const bf16* x, const float* w, const void* w0, const void* w1, const void* w2,
                                                             const void* w3, const float* f0, const float* f1, const float* f2,
                                                             const float* f3, bf16* y0, bf16* y1, bf16* y2, bf16* y3, int outer0,
                                                             int outer1, int outer2, int outer3, int rows, int inner, int split,
                                                             float offset, float eps) {
  NORMED_ROWS(x, nullptr, w, nullptr, nullptr, offset, eps)
  const Parts<bf16> parts = {{w0, w1, w2, w3}, {f0, f1, f2, f3}, {y0, y1, y2, y3}, {outer0, outer1, outer2, outer3}};
  product_few<4, 4, true>(parts, wait, stride, rows, inner, split);
}
REGISTER(norm_product_few_codes)

// The same of sums = x + r and normed = sums / rms(sums) * (offset + w), which the first block writes, with a router and, where there is one,
// the gate of a shared expert: logits [rows, experts], gates [rows], both in fp32. Nobody is chosen yet, of [rows, top].
KERNEL(32 * STREAM_WARPS, add_norm_scores_few)(const bf16* x, const bf16* r, const float* w, bf16* sums, bf16* normed, const bf16* router,
                                               const bf16* gate, float* logits, float* gates, uint32_t* chosen, int rows, int inner,
                                               int split, int experts, int top, float offset, float eps) {
  NORMED_ROWS(x, r, w, sums, normed, offset, eps)
  const auto waited = [&] {
    const bf16* const rows_of_norms = wait();
    for (int i = threadIdx.x; blockIdx.x == 0 && i < rows * top; i += blockDim.x) write_word(chosen + i, NOBODY);
    return rows_of_norms;
  };
  const Parts<float> parts = {{router, gate}, {}, {logits, gates}, {experts, gate == nullptr ? 0 : 1}};
  product_few<16, 0, true>(parts, waited, stride, rows, inner, split);
}
REGISTER(add_norm_scores_few)
