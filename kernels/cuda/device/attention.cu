// Attention on the tensor cores of every card, and what stands around it: keys and values into pages, partial sums into outputs.
#include "attention.cuh"
#include "norm.cuh"

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

// Adds the partial sums of row blockIdx.x, head blockIdx.y; a thread takes every 256th channel. parts [rows, 3]: the row's first partial row, the
// distance to the next, and how many there are; none where the outputs are written already.
// With a gate, as wide as the outputs, every output that is stored is then multiplied by its sigmoid.
template <bool IS_GATED>
DEV void merge(const float* __restrict__ partial_out, const float* __restrict__ partial_sum, const uint32_t* __restrict__ parts, bf16* out,
               const bf16* __restrict__ gate, int heads, int width) {
  const uint32_t* const part = parts + 3 * (size_t)blockIdx.x;
  const uint32_t first = part[0], stride = part[1], count = part[2];
  if (!IS_GATED && count == 0) return;
  auto at = [&](uint32_t i) { return (size_t)(first + i * stride) * heads + blockIdx.y; };
  float best = -INFINITY;
  for (uint32_t i = 0; i < count; ++i) best = fmaxf(best, partial_sum[2 * at(i)]);
  for (int channel = threadIdx.x; channel < width; channel += 256) {
    const size_t place = ((size_t)blockIdx.x * heads + blockIdx.y) * width + channel;
    float sum = 0.f, x = 0.f;
    for (uint32_t i = 0; i < count; ++i) {
      const float factor = two_to(partial_sum[2 * at(i)] - best);
      sum += factor * partial_sum[2 * at(i) + 1];
      x += factor * partial_out[at(i) * width + channel];
    }
    bf16 stored;
    if (count == 0) stored = out[place];
    else store(stored, x / sum);
    if (IS_GATED) store(stored, f32(stored) * sigmoid(f32(gate[place])));
    out[place] = stored;
  }
}
KERNEL(256, attention_merge)(const float* partial_out, const float* partial_sum, const uint32_t* parts, bf16* out, int heads, int width) {
  merge<false>(partial_out, partial_sum, parts, out, nullptr, heads, width);
}
REGISTER(attention_merge)
KERNEL(256, attention_merge_gated)(const float* partial_out, const float* partial_sum, const uint32_t* parts, bf16* out, const bf16* gate,
                                   int heads, int width) {
  let_others_start();
  await_inputs();
  merge<true>(partial_out, partial_sum, parts, out, gate, heads, width);
}
REGISTER(attention_merge_gated)

// The heads of few rows before attention: normed [rows, heads, width] = the norms of q, and those of k [rows, kv heads, width] go to their
// places in the pages with v, as store_kv puts them. places [rows]; width a multiple of 4, at most 256. One warp for a head of a row.
KERNEL(128, norm_and_store)(const bf16* q, const bf16* k, const bf16* v, const float* query_norm, const float* key_norm,
                            const uint32_t* places, bf16* normed_q, bf16* key, bf16* value, int heads, int kv_heads, int width,
                            int page_tokens, float offset, float eps) {
  const int row = blockIdx.x, lane = threadIdx.x & 31, number = blockIdx.y * 4 + (threadIdx.x >> 5);
  const bool is_query = number < heads, is_value = number >= heads + kv_heads;
  const float* const norm = is_query ? query_norm : key_norm;
  Four weight[NARROW_NORM / 128];
  let_others_start();
#pragma unroll
  for (int n = 0; n < NARROW_NORM / 128; ++n)
    if (const int i = 4 * lane + 128 * n; i < width) weight[n] = read_four(norm + i);
  await_inputs();
  if (number >= heads + 2 * kv_heads) return;
  const int head = is_query ? number : (number - heads) % kv_heads;
  const size_t place = ((size_t)places[row] + head * page_tokens) * width, at = ((size_t)row * kv_heads + head) * width;
  const size_t query = ((size_t)row * heads + head) * width;
  const bf16* const from = is_query ? q + query : (is_value ? v : k) + at;
  bf16* const to = is_query ? normed_q + query : (is_value ? value : key) + place;
  if (is_value) {
    for (int i = 4 * lane; i < width; i += 128) write_four(to + i, read_four(from + i));
    return;
  }
  const float scale = inverse_rms<32>(from, lane, width, eps);
#pragma unroll
  for (int n = 0; n < NARROW_NORM / 128; ++n)
    if (const int i = 4 * lane + 128 * n; i < width) write_four(to + i, normed(read_four(from + i), weight[n], scale, offset));
}
REGISTER(norm_and_store)

// Between k, v and their places in the pages: `units` times 16 bytes for each row and head, of which a row's lie `row_step` apart and a
// head's `head_step`. places [rows]. One block per row and head.
DEV void move_kv(uint8_t* k, uint8_t* v, const uint32_t* places, uint8_t* key, uint8_t* value, int units, int page_tokens, int row_step,
                 int head_step, bool store) {
  const size_t row = ((size_t)blockIdx.x * row_step + (size_t)blockIdx.y * head_step) * units;
  const size_t place = ((size_t)places[blockIdx.x] + blockIdx.y * page_tokens) * units;
  uint4* const rows = (uint4*)(threadIdx.x < 32 ? k : v) + row;
  uint4* const pages = (uint4*)(threadIdx.x < 32 ? key : value) + place;
  for (int i = threadIdx.x & 31; i < units; i += 32) {
    if (store) pages[i] = rows[i];
    else rows[i] = pages[i];
  }
}
KERNEL(64, store_kv)(uint8_t* k, uint8_t* v, const uint32_t* places, uint8_t* key, uint8_t* value, int units, int page_tokens, int row_step,
                     int head_step) {
  move_kv(k, v, places, key, value, units, page_tokens, row_step, head_step, true);
}
REGISTER(store_kv)
KERNEL(64, load_kv)(uint8_t* k, uint8_t* v, const uint32_t* places, uint8_t* key, uint8_t* value, int units, int page_tokens, int row_step,
                    int head_step) {
  move_kv(k, v, places, key, value, units, page_tokens, row_step, head_step, false);
}
REGISTER(load_kv)

// Keys, rotated to their positions, and values of the tokens of `table` [tiles of 96], as tiles [kv head, tile][width / 64][token][64],
// chunks xored by the token; zeros for what fills a list. One warp for each token and head. Grid: eight tokens, kv heads.
KERNEL(256, gather_kv)(const bf16* __restrict__ key, const bf16* __restrict__ value, const Token* __restrict__ table,
                       const float* __restrict__ rope, uint8_t* __restrict__ keys, uint8_t* __restrict__ values, int tokens, int page_tokens,
                       int width, int rotary) {
  const int number = blockIdx.x * 8 + threadIdx.x / 32, chunks = width / 8, pairs = rotary / 16;
  const Token token = table[number];
  const size_t from = ((size_t)token.place + (size_t)blockIdx.y * page_tokens) * width;
  const size_t tile = ((size_t)blockIdx.y * tokens + number / GATHERED * GATHERED) * width * 2;
  auto at = [&](int chunk) { return tile + chunk_at<GATHERED>(number % GATHERED, chunk); };
  for (int chunk = threadIdx.x % 32; chunk < chunks; chunk += 32) {
    const bool there = token.place != NOWHERE;
    const uint4 zeros = {0, 0, 0, 0};
    *(uint4*)(values + at(chunk)) = there ? *(const uint4*)(value + from + chunk * 8) : zeros;
    if (chunk >= pairs && chunk < 2 * pairs) continue;  // goes with its other half
    uint4 near = there ? *(const uint4*)(key + from + chunk * 8) : zeros;
    if (chunk < pairs) {
      uint4 far = there ? *(const uint4*)(key + from + (chunk + pairs) * 8) : zeros;
      rotate_pairs(near, far, load_angles(rope + (size_t)token.position * rotary + chunk * 8, rotary / 2));
      *(uint4*)(keys + at(chunk + pairs)) = far;
    }
    *(uint4*)(keys + at(chunk)) = near;
  }
}
REGISTER(gather_kv)

// Attention in fp32, the plain form: one block per row and head, one thread per token of a tile, then one for every 64th channel.
// lists [rows]: where a row's tokens begin in the table. Everything else as in AttentionStep.
KERNEL(64, attention_f32)(const float* __restrict__ q, const float* __restrict__ key, const float* __restrict__ value,
                          const uint32_t* __restrict__ lists, const Token* __restrict__ table, const uint32_t* __restrict__ positions,
                          const uint32_t* __restrict__ seen, const float* __restrict__ rope, float* __restrict__ out, float scale, int heads,
                          int kv_heads, int page_tokens, int width, int rotary) {
  SHARED float query[256], weights[TOKENS];
  SHARED size_t places[TOKENS];
  const size_t row = (size_t)blockIdx.x * heads + blockIdx.y;
  const int half = rotary / 2, thread = threadIdx.x, head = blockIdx.y / (heads / kv_heads), most = (int)seen[blockIdx.x];
  auto rotated = [&](const float* x, int i, uint32_t position) {
    if (i >= rotary) return x[i];
    const float* const angles = rope + (size_t)position * rotary;
    return i < half ? x[i] * angles[i] - x[i + half] * angles[half + i] : x[i] * angles[i - half] + x[i - half] * angles[i];
  };
  for (int i = thread; i < width; i += TOKENS) query[i] = rotated(q + row * width, i, positions[blockIdx.x]) * scale;
  float best = -INFINITY, sum = 0.f, channels[4] = {};
  for (int first = 0; first < most; first += TOKENS) {
    const int count = most - first < TOKENS ? most - first : TOKENS;
    sync();  // the query is there, and the last tile has been read
    if (thread < count) {
      const Token token = table[lists[blockIdx.x] + first + thread];
      places[thread] = ((size_t)token.place + head * page_tokens) * width;
      float score = 0.f;
      for (int i = 0; i < width; ++i) score += query[i] * rotated(key + places[thread], i, token.position);
      weights[thread] = score;
    }
    sync();
    float highest = best;
    for (int t = 0; t < count; ++t) highest = fmaxf(highest, weights[t]);
    const float kept = expf(best - highest);
    best = highest;
    sum *= kept;
    for (int c = 0; c < 4; ++c) channels[c] *= kept;
    for (int t = 0; t < count; ++t) {
      const float weight = expf(weights[t] - best);
      sum += weight;
      for (int c = 0; c < 4; ++c)
        if (thread + c * TOKENS < width) channels[c] += weight * value[places[t] + thread + c * TOKENS];
    }
  }
  for (int c = 0; c < 4; ++c)
    if (thread + c * TOKENS < width) out[row * width + thread + c * TOKENS] = channels[c] / sum;
}
REGISTER(attention_f32)
