// Attention on the tensor cores of every card, and what stands around it: keys and values into pages, partial sums into outputs.
#include "attention.cuh"

constexpr int ATTENTION_THREADS = 256;  // eight warps, each with 16 query rows

// s += Q K^T for a warp's rows, `first` on.
template <int D> DEV void scores(float (&s)[TOKENS / 8][4], const uint8_t* queries, int first, const uint8_t* keys, int lane) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[4], b[4];
    load_matrices(a, queries + chunk_at<ROWS>(first + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < TOKENS / 16; ++n) {
      load_matrices(b, keys + chunk_at<TOKENS>(16 * n + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
      mma_bf16(s[2 * n], a, b[0], b[1]);
      mma_bf16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}
// o += P V
template <int D> DEV void weigh(float (&o)[D / 8][4], const uint32_t (&weights)[TOKENS / 16][4], const uint8_t* values, int lane) {
#pragma unroll
  for (int k = 0; k < TOKENS / 16; ++k)
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t b[4];
      load_transposed(b, values + chunk_at<TOKENS>(16 * k + (lane & 15), 2 * n + (lane >> 4)));
      mma_bf16(o[2 * n], weights[k], b[0], b[1]);
      mma_bf16(o[2 * n + 1], weights[k], b[2], b[3]);
    }
}

// Shared memory: queries, then two stages of keys and values.
template <int D> DEV void attend(const AttentionStep& step) {
  DYNAMIC_SHARED(shared);
  constexpr int THREADS = ATTENTION_THREADS;
  const Attending<D> block(step);
  const int thread = threadIdx.x, lane = thread & 31, first = (thread >> 5) * 16;
  auto keys = [&](int t) { return shared + queries_bytes<D>() + (t & 1) * 2 * tile_bytes<D>(); };
  auto load = [&](int t) {
    typename Attending<D>::template Places<THREADS> places;
    block.template find_rows<THREADS>(places, t, thread);
    block.template copy_rows<THREADS>(keys(t), step.key, places, block.tokens_of(t), thread);
    block.template copy_rows<THREADS>(keys(t) + tile_bytes<D>(), step.value, places, block.tokens_of(t), thread);
  };
  load(0);
  block.template load_queries<THREADS>(shared, 0, ROWS, thread);
  sync();
  block.template rotate_queries<THREADS>(shared, 0, ROWS, thread);
  RowSums<D> rows(block, first);
  for (int t = 0; t < block.tiles; ++t) {
    Angles angles = {};
    block.ask_angles(angles, t, thread);
    copies_wait();
    sync();  // the tile is there, and everyone is done with the one before
    if (t + 1 < block.tiles) load(t + 1);
    block.template rotate_tile<THREADS>(keys(t), angles, t, thread);
    sync();
    if (first >= block.used) continue;
    float s[TOKENS / 8][4] = {};
    uint32_t weights[TOKENS / 16][4];
    scores<D>(s, shared, first, keys(t), lane);
    rows.take(s, block.job.begin + t * TOKENS, weights);
    weigh<D>(rows.o, weights, keys(t) + tile_bytes<D>(), lane);
  }
  if (first < block.used) rows.write(block);
}
ATTENTION(attention_64, 64, ATTENTION_THREADS, attend)
ATTENTION(attention_128, 128, ATTENTION_THREADS, attend)
ATTENTION(attention_256, 256, ATTENTION_THREADS, attend)

// Adds the partial sums of row blockIdx.x, head blockIdx.y; one thread per channel. parts [rows, 3]: the row's first partial row, the
// distance to the next, and how many there are; none where the outputs are written already.
KERNEL(256, attention_merge)(const float* __restrict__ partial_out, const float* __restrict__ partial_sum, const uint32_t* __restrict__ parts,
                             bf16* __restrict__ out, int heads, int width) {
  const uint32_t* const part = parts + 3 * (size_t)blockIdx.x;
  const uint32_t first = part[0], stride = part[1], count = part[2];
  if (count == 0 || (int)threadIdx.x >= width) return;
  auto at = [&](uint32_t i) { return (size_t)(first + i * stride) * heads + blockIdx.y; };
  float best = -INFINITY, sum = 0.f, x = 0.f;
  for (uint32_t i = 0; i < count; ++i) best = fmaxf(best, partial_sum[2 * at(i)]);
  for (uint32_t i = 0; i < count; ++i) {
    const float factor = two_to(partial_sum[2 * at(i)] - best);
    sum += factor * partial_sum[2 * at(i) + 1];
    x += factor * partial_out[at(i) * width + threadIdx.x];
  }
  store(out[((size_t)blockIdx.x * heads + blockIdx.y) * width + threadIdx.x], x / sum);
}
REGISTER(attention_merge)

// Keys and values of live rows into their pages. k, v [rows, kv heads, D]; places [rows]. One block per row and head.
KERNEL(64, store_kv)(const bf16* __restrict__ k, const bf16* __restrict__ v, const uint32_t* __restrict__ places, bf16* __restrict__ key,
                     bf16* __restrict__ value, int width, int page_tokens) {
  const size_t from = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * width, to = ((size_t)places[blockIdx.x] + blockIdx.y * page_tokens) * width;
  const bool keys = threadIdx.x < 32;
  const int chunk = threadIdx.x & 31;
  if (chunk < width / 8) ((uint4*)((keys ? key : value) + to))[chunk] = ((const uint4*)((keys ? k : v) + from))[chunk];
}
REGISTER(store_kv)
