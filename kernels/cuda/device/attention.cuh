// Full attention: live rows attend causally over tokens whose keys and values lie in shared, read-only pages. Keys lie there before
// rotation; they are rotated to their global position in the tile, with angles from a table made in f64.
//
// A request's tokens are listed by ascending position, so what a row sees is a prefix of the list, whatever pages, cached bodies and
// live rows the list mixes. One block takes ROWS query rows (live rows x the heads that share a key head) of one job, and the job's
// range of tokens in tiles, with a running softmax. Jobs of one range each write outputs; several ranges of the same rows write
// partial sums, which attention_merge adds.
#pragma once
#include "tensor.cuh"

constexpr int ROWS = 128, TOKENS = 64;  // of a tile
constexpr int GATHERED = 96;               // tokens of a tile that was gathered before
constexpr uint32_t WHOLE = ~0u;           // no partial sums: the job covers all that its rows see

struct Job {
  uint32_t first_row, rows;  // live rows
  uint32_t list;             // where the request's tokens begin in the table
  uint32_t begin, end;       // range of that list
  uint32_t partial;          // first row of the partial sums, or WHOLE
};
struct Token {
  uint32_t place;     // (page * kv heads) * page tokens + place in the page
  uint32_t position;  // global
};
constexpr uint32_t NOWHERE = ~0u;  // the place of what fills a list up to whole tiles
// q, out [rows, heads, D]; key, value: pages [page, kv head, token, D]; rope [position, rotary]: cosines, then sines; positions and
// seen [rows]: where a row stands, and how many of its request's tokens it sees. Partial sums are [partial row, heads, D] before the
// division, with [partial row, heads, 2]: the largest score in units of log2, and the sum of the weights relative to it.
struct AttentionStep {
  const bf16 *q, *key, *value;
  const Job* jobs;
  const Token* table;
  const uint32_t *positions, *seen;
  const float* rope;
  bf16* out;
  float *partial_out, *partial_sum;
  float scale;
  int heads, kv_heads, page_tokens, rotary, log2_rotary;
};
template <int D> constexpr int queries_bytes() { return ROWS * D * 2; }
template <int D> constexpr int tile_bytes() { return TOKENS * D * 2; }

// Cosines and sines of eight pairs of channels.
struct Angles { uint4 cosines[2], sines[2]; };
DEV Angles load_angles(const float* cosines, int half) {
  const uint4 *c = (const uint4*)cosines, *s = (const uint4*)(cosines + half);
  return {{read_ahead(c), read_ahead(c + 1)}, {read_ahead(s), read_ahead(s + 1)}};
}
// Rotates the pairs; `near` and `far` are half the rotated width apart.
DEV void rotate_pairs(uint4& near, uint4& far, const Angles& angles) {
  uint32_t x[4], y[4];
  const uint32_t xs[4] = {near.x, near.y, near.z, near.w}, ys[4] = {far.x, far.y, far.z, far.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 c = angles.cosines[i], s = angles.sines[i];
    const float cs[4] = {from_bits(c.x), from_bits(c.y), from_bits(c.z), from_bits(c.w)};
    const float ss[4] = {from_bits(s.x), from_bits(s.y), from_bits(s.z), from_bits(s.w)};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float a0 = low_bf16(xs[2 * i + j]), a1 = high_bf16(xs[2 * i + j]), b0 = low_bf16(ys[2 * i + j]), b1 = high_bf16(ys[2 * i + j]);
      x[2 * i + j] = pack_bf16(a0 * cs[2 * j] - b0 * ss[2 * j], a1 * cs[2 * j + 1] - b1 * ss[2 * j + 1]);
      y[2 * i + j] = pack_bf16(b0 * cs[2 * j] + a0 * ss[2 * j], b1 * cs[2 * j + 1] + a1 * ss[2 * j + 1]);
    }
  }
  near = {x[0], x[1], x[2], x[3]};
  far = {y[0], y[1], y[2], y[3]};
}
DEV void rotate_pairs(uint8_t* near, uint8_t* far, const Angles& angles) {
  uint4 x = *(const uint4*)near, y = *(const uint4*)far;
  rotate_pairs(x, y, angles);
  *(uint4*)near = x;
  *(uint4*)far = y;
}

// What one block does. A query row is (live row, head of the group that shares the block's key head).
template <int D> struct Attending {
  static constexpr int CHUNKS = D / 8;
  const AttentionStep& step;
  const Job job;
  const Token* const list;
  const int kv_head, group, used, tiles;  // used: query rows
  const int log2_pairs, pairs;            // rotated chunks, by two: a power of two, or none

  DEV_MEMBER explicit Attending(const AttentionStep& s)
      : step(s), job(s.jobs[blockIdx.x]), list(s.table + job.list), kv_head(blockIdx.y), group(s.heads / s.kv_heads),
        used((int)job.rows * group), tiles(((int)(job.end - job.begin) + TOKENS - 1) / TOKENS), log2_pairs(s.log2_rotary - 4),
        pairs(s.rotary / 16) {}

  DEV_MEMBER int row_of(int m) const { return job.first_row + m / group; }
  DEV_MEMBER int head_of(int m) const { return kv_head * group + m % group; }

  // Query rows from `first` on; `thread` of THREADS does its share.
  template <int THREADS> DEV_MEMBER void load_queries(uint8_t* to, int first, int count, int thread) const {
    for (int i = thread; i < count * CHUNKS; i += THREADS) {
      const int m = first + i / CHUNKS, chunk = i % CHUNKS;
      uint4 x = {0, 0, 0, 0};
      if (m < used) x = *(const uint4*)(step.q + ((size_t)row_of(m) * step.heads + head_of(m)) * D + chunk * 8);
      *(uint4*)(to + chunk_at<ROWS>(m, chunk)) = x;
    }
  }
  template <int THREADS> DEV_MEMBER void rotate_queries(uint8_t* tile, int first, int count, int thread) const {
    for (int i = thread; i < count * pairs; i += THREADS) {
      const int m = first + i / pairs, chunk = i % pairs;
      if (m >= used) continue;
      const Angles angles = load_angles(step.rope + (size_t)step.positions[row_of(m)] * step.rotary + chunk * 8, step.rotary / 2);
      rotate_pairs(tile + chunk_at<ROWS>(m, chunk), tile + chunk_at<ROWS>(m, chunk + pairs), angles);
    }
  }
  DEV_MEMBER const Token* tokens(int t) const { return list + job.begin + t * TOKENS; }
  // How many tokens tile `t` of the job's range has; what lies beyond the range is zeros.
  DEV_MEMBER int tokens_of(int t) const {
    const int left = (int)(job.end - job.begin) - t * TOKENS;
    return left < TOKENS ? left : TOKENS;
  }
  // Where the rows of tile `t` lie of which a thread of THREADS copies one chunk each: every STEP-th from its first on.
  template <int THREADS> struct Places {
    static constexpr int STEP = THREADS / CHUNKS;
    uint32_t row[TOKENS / STEP] = {};
  };
  template <int THREADS> DEV_MEMBER void find_rows(Places<THREADS>& places, int t, int thread) const {
    const int first = thread / CHUNKS, count = tokens_of(t);
    if (t >= tiles) return;
#pragma unroll
    for (int i = 0; i < TOKENS / Places<THREADS>::STEP; ++i) {
      const int token = first + i * Places<THREADS>::STEP;
      places.row[i] = tokens(t)[token < count ? token : 0].place;
    }
  }
  // Copies these rows, from the pages of keys or of values; zeros beyond `count`. Few instructions: whoever brings tiles has one warp on
  // each scheduler.
  template <int THREADS>
  DEV_MEMBER void copy_rows(uint8_t* to, const bf16* pages, const Places<THREADS>& places, int count, int thread) const {
    constexpr int STEP = Places<THREADS>::STEP;
    static_assert(STEP % 4 == 0, "the swizzle takes one of two values");
    const int first = thread / CHUNKS, chunk = thread % CHUNKS, offset = chunk_at<TOKENS>(first, chunk);
    pages += (size_t)kv_head * step.page_tokens * D + chunk * 8;
#pragma unroll
    for (int i = 0; i < TOKENS / STEP; ++i) {
      const int swizzled = STEP % 8 && i % 2 ? offset ^ 64 : offset;
      copy16(to + swizzled + i * STEP * 128, pages + (size_t)places.row[i] * D, first + i * STEP < count);
    }
  }
  // Rotation of the first `count` keys of tile `t` in pieces, `thread` of THREADS taking every THREADS-th; it is a multiple of `pairs`.
  // The angles of a thread's first piece can be asked for before the keys are there.
  DEV_MEMBER Angles angles_of(int t, int piece) const {
    const int chunk = piece & (pairs - 1);
    return load_angles(step.rope + (size_t)tokens(t)[piece >> log2_pairs].position * step.rotary + chunk * 8, step.rotary / 2);
  }
  DEV_MEMBER void ask_angles(Angles& first, int t, int thread) const {
    if (thread < tokens_of(t) * pairs) first = angles_of(t, thread);
  }
  template <int THREADS> DEV_MEMBER void rotate_tile(uint8_t* tile, Angles angles, int t, int thread) const {
#pragma unroll 1
    for (int piece = thread; piece < tokens_of(t) * pairs; piece += THREADS) {
      const int token = piece >> log2_pairs, chunk = piece & (pairs - 1);
      if (piece != thread) angles = angles_of(t, piece);
      rotate_pairs(tile + chunk_at<TOKENS>(token, chunk), tile + chunk_at<TOKENS>(token, chunk + pairs), angles);
    }
  }
};

// A thread's share of the running softmax: query rows m and m + 8, m its lane / 4 in the sixteen rows of its warp. Products come as
// accumulators of mma or wgmma: columns 8 n + column (+ 1), rows m for elements 0 and 1, m + 8 for 2 and 3.
template <int D, int N = TOKENS> struct RowSums {
  float o[D / 8][4] = {}, best[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  uint32_t limit[2];
  const float to_log2;
  const int m, column;

  DEV_MEMBER RowSums(const Attending<D>& block, int first)
      : to_log2(block.step.scale * 1.44269504f), m(first + (threadIdx.x & 31) / 4), column((threadIdx.x & 3) * 2) {
    for (int r = 0; r < 2; ++r) limit[r] = m + 8 * r < block.used ? block.step.seen[block.row_of(m + 8 * r)] : 0;
  }
  // Takes the scores of a tile that begins at token `first`; leaves its weights as operand of mma.
  DEV_MEMBER void take(float (&s)[N / 8][4], uint32_t first, uint32_t (&weights)[N / 16][4]) {
    const bool all = first + N <= limit[0] && first + N <= limit[1];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = best[r];
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          if (!all && first + 8 * n + column + (e & 1) >= limit[r]) s[n][e] = -INFINITY;
          largest = fmaxf(largest, s[n][e]);
        }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      // A row that sees nothing of this range keeps its sums at zero.
      const float base = largest == -INFINITY ? 0.f : largest * to_log2, factor = two_to(best[r] * to_log2 - base);
      best[r] = largest;
      sum[r] *= factor;
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] = two_to(s[n][e] * to_log2 - base);
          sum[r] += s[n][e];
        }
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * r] *= factor;
        o[n][2 * r + 1] *= factor;
      }
    }
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[k][e] = pack_bf16(s[2 * k + (e >> 1)][2 * (e & 1)], s[2 * k + (e >> 1)][2 * (e & 1) + 1]);
  }
  // Columns `first` to `first` + D of outputs that are `width` wide.
  DEV_MEMBER void write(const Attending<D>& block, int width = D, int first = 0) {
    const AttentionStep& step = block.step;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += shuffle_xor(sum[r], 1);
      sum[r] += shuffle_xor(sum[r], 2);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = m + 8 * r;
      if (row >= block.used) continue;
      if (block.job.partial == WHOLE) {
        uint32_t* const to = (uint32_t*)(step.out + ((size_t)block.row_of(row) * step.heads + block.head_of(row)) * width + first + column);
        const float factor = 1.f / sum[r];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) to[4 * n] = pack_bf16(o[n][2 * r] * factor, o[n][2 * r + 1] * factor);
      } else {
        const size_t at = (size_t)(block.job.partial + row / block.group) * step.heads + block.head_of(row);
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) step.partial_out[at * width + first + 8 * n + column + e] = o[n][2 * r + e];
        if (first + column == 0) {
          step.partial_sum[2 * at] = best[r] * to_log2;
          step.partial_sum[2 * at + 1] = sum[r];
        }
      }
    }
  }
};

#define ATTENTION(name, D, threads, attend)                                                                                         \
  KERNEL_ALONE(threads, name)(const bf16* q, const bf16* key, const bf16* value, const Job* jobs, const Token* table,               \
                              const uint32_t* positions, const uint32_t* seen, const float* rope, bf16* out, float* partial_out,    \
                              float* partial_sum, float scale, int heads, int kv_heads, int page_tokens, int rotary,                \
                              int log2_rotary) {                                                                                    \
    if (jobs[blockIdx.x].rows == 0) return; /* a place for a job in a step that is done again and again */                         \
    attend<D>({q, key, value, jobs, table, positions, seen, rope, out, partial_out, partial_sum, scale, heads, kv_heads,            \
               page_tokens, rotary, log2_rotary});                                                                                  \
  }                                                                                                                                 \
  REGISTER(name)
