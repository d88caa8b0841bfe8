// The recurrence of every family in chunks of 16 tokens on the tensor cores of every card: builds and long prompts. Parts, states and
// parameters as in recurrence.cuh. Per chunk, with G the log decays summed within it (one per head, or one per key channel):
//   A_ij = b_i sum_c k_ic k_jc e^{G_ic - G_jc} (j < i)        P_ij = sum_c q_ic k_jc e^{G_ic - G_jc} (j <= i)
//   V' = (I + A)^-1 diag(b) (V - (e^G K) X),  or V without the delta rule
//   O = (e^G Q) X + P V'        X <- diag(e^{G_last}) X + (e^{G_last - G} K)^T V'
// No exponent is above zero, so that no decay can overflow. A warp has 16 columns of X, transposed, as accumulators: each product's
// result is the next one's operand as it lies in the registers. Operands are fp16, sums fp32.
#pragma once
#include "four.cuh"
#include "recurrence.cuh"

constexpr int CHUNK_ROWS = 16;
template <int N, int M> DEV const float* flat(const Four (&rows)[N][M]) { return rows[0][0].at; }

// Sums of 2 HALF values over as many lanes: lane l is left with the sum of value l, in the first place.
template <int HALF> DEV void sum_values(float (&value)[16], int lane) {
  const bool upper = lane & HALF;
#pragma unroll
  for (int n = 0; n < HALF; ++n) {
    const float kept = upper ? value[n + HALF] : value[n], given = upper ? value[n] : value[n + HALF];
    value[n] = kept + shuffle_xor(given, HALF);
  }
  if constexpr (HALF > 1) sum_values<HALF / 2>(value, lane);
}

template <int D, bool VECTOR_GATE, bool DELTA, class Out>
DEV void recurrence_chunks(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v, const float* __restrict__ gate,
                           const float* __restrict__ beta, const uint32_t* __restrict__ ranges, const uint32_t* __restrict__ from,
                           const uint8_t* __restrict__ fresh, const uint8_t* __restrict__ live, float* running, float* body,
                           float* transition, Out* __restrict__ out, int heads, int key_heads) {
  constexpr int N = CHUNK_ROWS, THREADS = 2 * D, CHANNELS = VECTOR_GATE ? D : 4, MAP_ROW = 24, ROW = D + 4;
  // G in units of log2, and decays; then fp16 tiles of the products. With a scalar gate these are K and Q themselves, and decays act on
  // what comes of them; else e^G K, e^G Q and e^{G_last - G} K, and A and P are made from fp32 rows, four floats of padding apart. Map
  // rows are 48 bytes apart. All this is free of bank conflicts.
  SHARED Four keys[N][D / 4 + 1], queries[N][D / 4 + 1], sums[N][CHANNELS / 4 + 1];
  SHARED float all[CHANNELS], from_start[N], to_end[N], below[N][N + 1], betas[N];
  SHARED uint4 k_words[N * D / 8], q_words[N * D / 8], remaining_k[N * D / 8], values[N * D / 8];
  SHARED uint4 solve[N * MAP_ROW / 8], attention[N * MAP_ROW / 8];
  uint8_t* const k_tile = (uint8_t*)k_words;
  uint8_t* const q_tile = (uint8_t*)q_words;
  uint8_t* const rest_tile = (uint8_t*)remaining_k;
  uint8_t* const v_tile = (uint8_t*)values;
  f16* const solve_map = (f16*)solve;
  f16* const attention_map = (f16*)attention;
  const int part = blockIdx.x, sequence = blockIdx.y / heads, head = blockIdx.y % heads, key_head = head / (heads / key_heads);
  const int thread = threadIdx.x;
  if (part == 2 && !live[blockIdx.y]) return;
  // Where this thread's first value of the state lies. Computed twice: registers are short in between.
  auto state = [&] {
    const int me = again(thread);
    return (part == 0 ? running : part == 1 ? body : transition) + (size_t)blockIdx.y * D * D + (me & 3) * 2 * D + (me >> 5) * 16 + (me >> 2 & 7);
  };
  const uint32_t first = ranges[2 * sequence] + (part ? from[sequence] : 0), end = ranges[2 * sequence + 1];

  float x[D / 8][4];  // X^T: column 16 warp + lane / 4 (+ 8), key rows 8 j + 2 (lane % 4) (+ 1)
  float* const start = state();
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = (thread >> 5) * 16 + (thread >> 2 & 7) + 8 * (e >> 1), row = 8 * j + (thread & 3) * 2 + (e & 1);
      x[j][e] = fresh[sequence] ? (part == 2 && row == column ? 1.f : 0.f) : start[(8 * j + (e & 1)) * D + 8 * (e >> 1)];
    }

  // P above its diagonal blocks, which a vector gate leaves alone.
  for (int i = thread; i < N * N; i += THREADS)
    if (i % N / 4 > i / N / 4) store(attention_map[i / N * MAP_ROW + i % N], 0.f);

  for (uint32_t t0 = first; t0 < end; t0 += N) {
    const int count = end - t0 < N ? (int)(end - t0) : N;  // rows after the last are zeros and change nothing
    sync();
    for (int i = thread; i < N * D / 8; i += THREADS) {
      const int t = i / (D / 8), chunk = i % (D / 8);
      const size_t key_at = ((size_t)(t0 + t) * key_heads + key_head) * D + chunk * 8, value_at = ((size_t)(t0 + t) * heads + head) * D + chunk * 8;
      const uint4 zero = {0, 0, 0, 0};
      const uint4 k4 = t < count ? *(const uint4*)(k + key_at) : zero, q4 = t < count ? *(const uint4*)(q + key_at) : zero;
      const uint32_t ks[4] = {k4.x, k4.y, k4.z, k4.w}, qs[4] = {q4.x, q4.y, q4.z, q4.w};
      if constexpr (VECTOR_GATE) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          keys[t][2 * chunk + e] = {low_bf16(ks[2 * e]), high_bf16(ks[2 * e]), low_bf16(ks[2 * e + 1]), high_bf16(ks[2 * e + 1])};
          queries[t][2 * chunk + e] = {low_bf16(qs[2 * e]), high_bf16(qs[2 * e]), low_bf16(qs[2 * e + 1]), high_bf16(qs[2 * e + 1])};
        }
      } else {
        const int at = chunk_at<N>(t, chunk);
        auto halves = [](uint32_t two) { return pack(low_bf16(two), high_bf16(two)); };
        *(uint4*)(k_tile + at) = {halves(ks[0]), halves(ks[1]), halves(ks[2]), halves(ks[3])};
        *(uint4*)(q_tile + at) = {halves(qs[0]), halves(qs[1]), halves(qs[2]), halves(qs[3])};
      }
      *(uint4*)(v_tile + chunk_at<N>(t, chunk)) = t < count && part != 2 ? *(const uint4*)(v + value_at) : zero;
    }
    if (thread < (VECTOR_GATE ? D : 1)) {
      float sum = 0.f;
      for (int t = 0; t < N; ++t) {
        if (t < count) sum += gate[((t0 + t) * (size_t)heads + head) * (VECTOR_GATE ? D : 1) + thread] * 1.44269504f;
        sums[t][thread / 4].at[thread % 4] = sum;
      }
      all[thread] = two_to(sum);
    }
    if (DELTA && thread < N) betas[thread] = thread < count ? beta[(t0 + thread) * (size_t)heads + head] : 0.f;
    sync();

    // Token-major tiles as operand [key channel, token], both blocks of eight tokens: this lane's row and half of a chunk of 16 channels.
    const int token = (again(thread) & 7) + (again(thread) >> 4 & 1) * 8, half = again(thread) >> 3 & 1;
    if constexpr (VECTOR_GATE) {
      for (int i = thread; i < N * D / 4; i += THREADS) {
        const int t = i / (D / 4), c = i % (D / 4), at = chunk_at<N>(t, c >> 1) + (c & 1) * 8;
        const Four kt = keys[t][c], qt = queries[t][c], now = sums[t][c], last = sums[N - 1][c];
        float in[4], rest[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          in[e] = two_to(now.at[e]);
          rest[e] = two_to(last.at[e] - now.at[e]);
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          *(uint32_t*)(k_tile + at + 2 * e) = pack(kt.at[e] * in[e], kt.at[e + 1] * in[e + 1]);
          *(uint32_t*)(q_tile + at + 2 * e) = pack(qt.at[e] * in[e], qt.at[e + 1] * in[e + 1]);
          *(uint32_t*)(rest_tile + at + 2 * e) = pack(kt.at[e] * rest[e], kt.at[e + 1] * rest[e + 1]);
        }
      }
      // A and P in blocks of 2 x 4 pairs: a lane has D / 32 channels of all of them, then lane l the sum of value l % 16: of pair l % 8, for
      // A in the first eight lanes and for P in the next.
      for (int block = thread >> 5; block < 20; block += THREADS / 32) {
        const int lane = again(thread) & 31, square = block / 2, below_of = square >= 6 ? 3 : square >= 3 ? 2 : square >= 1 ? 1 : 0;
        const int i0 = 4 * below_of + 2 * (block & 1), j0 = 4 * (square - below_of * (below_of + 1) / 2);
        // Offsets of the lane's channel in the block's first rows.
        int at_i = i0 * ROW + lane, at_j = j0 * ROW + lane;
        float value[16] = {};
#pragma unroll 1
        for (int c = 0; c < D; c += 32, at_i += 32, at_j += 32) {
          float kj[4], sj[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            kj[j] = flat(keys)[at_j + j * ROW];
            sj[j] = flat(sums)[at_j + j * ROW];
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float ki = flat(keys)[at_i + i * ROW], qi = flat(queries)[at_i + i * ROW];
            const float si = flat(sums)[at_i + i * ROW];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              // Above the diagonal the exponent could be anything; what comes of it is not used.
              const float k = kj[j] * two_to(fminf(si - sj[j], 0.f));
              value[4 * i + j] += ki * k;
              value[8 + 4 * i + j] += qi * k;
            }
          }
        }
        sum_values<8>(value, lane);
        const float sum = value[0] + shuffle_xor(value[0], 16);
        const int i = i0 + (lane >> 2 & 1), j = j0 + lane % 4;
        if (lane >= 16) continue;
        if (lane >= 8) store(attention_map[i * MAP_ROW + j], j <= i ? sum : 0.f);
        else if (DELTA) below[i][j] = betas[i] * sum;
      }
    } else {
      const int lane = thread & 31;
      if (thread < 64 && (DELTA || thread >= 32)) {  // the first warp makes A, the second P
        const uint8_t* const rows = thread < 32 ? k_tile : q_tile;
        float sum[2][4] = {};
#pragma unroll
        for (int s = 0; s < D / 16; ++s) {
          uint32_t a[4], b[4];
          load_matrices(a, rows + chunk_at<N>(lane & 15, 2 * s + (lane >> 4)));
          load_matrices(b, k_tile + chunk_at<N>(token, 2 * s + half));
          mma_f16(sum[0], a, b[0], b[1]);
          mma_f16(sum[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = (lane >> 2) + 8 * (e >> 1), j = 8 * n + (lane & 3) * 2 + (e & 1);
            const float x = j <= i ? sum[n][e] * two_to(sums[i][0].at[0] - sums[j][0].at[0]) : 0.f;
            if (thread >= 32) store(attention_map[i * MAP_ROW + j], x);
            else below[i][j] = betas[i] * x;
          }
      } else if (thread >= 64 && thread < 64 + N) {
        from_start[thread - 64] = two_to(sums[thread - 64][0].at[0]);
        to_end[thread - 64] = two_to(sums[N - 1][0].at[0] - sums[thread - 64][0].at[0]);
      }
    }
    sync();
    if (DELTA) {
      if (thread < N) {  // column `thread` of (I + A)^-1
        float inverse[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          inverse[i] = i == thread ? 1.f : 0.f;
#pragma unroll
          for (int j = 0; j < i; ++j) inverse[i] -= below[i][j] * inverse[j];
          store(solve_map[i * MAP_ROW + thread], inverse[i] * betas[thread]);
        }
      }
      sync();
    }

    const float all_channels = all[0];
    const int me = again(thread), warp = me >> 5, lane = me & 31, g = lane >> 2, c2 = (lane & 3) * 2;
    // This warp's columns. X^T as operand: key rows 16 s to 16 s + 15.
    auto operand = [&](int s, uint32_t (&a)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = pack(x[2 * s + (e >> 1)][2 * (e & 1)], x[2 * s + (e >> 1)][2 * (e & 1) + 1]);
    };
    float r[2][4] = {}, o[2][4] = {};
    uint32_t writes[4], two[4];
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
      uint32_t a[4];
      operand(s, a);
      if (DELTA) {
        load_matrices(two, k_tile + chunk_at<N>(token, 2 * s + half));
        mma_f16(r[0], a, two[0], two[1]);
        mma_f16(r[1], a, two[2], two[3]);
      }
      if (part == 0) {
        load_matrices(two, q_tile + chunk_at<N>(token, 2 * s + half));
        mma_f16(o[0], a, two[0], two[1]);
        mma_f16(o[1], a, two[2], two[3]);
      }
    }
    if constexpr (!VECTOR_GATE)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float decay = from_start[8 * n + c2 + (e & 1)];
          r[n][e] *= decay;
          o[n][e] *= decay;
        }
    float written[2][4];  // V'^T
    load_transposed(two, v_tile + chunk_at<N>(token, 2 * warp + half));
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const uint32_t v2 = two[e / 2];
      written[e / 4][e % 4] = low_bf16(v2) - r[e / 4][e % 4];
      written[e / 4][e % 4 + 1] = high_bf16(v2) - r[e / 4][e % 4 + 1];
    }
    auto as_operand = [](const float (&d)[2][4], uint32_t (&a)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = pack(d[e >> 1][2 * (e & 1)], d[e >> 1][2 * (e & 1) + 1]);
    };
    as_operand(written, writes);
    if constexpr (DELTA) {
      float solved[2][4] = {};
      load_matrices(two, solve_map + token * MAP_ROW + 8 * half);
      mma_f16(solved[0], writes, two[0], two[1]);
      mma_f16(solved[1], writes, two[2], two[3]);
#pragma unroll
      for (int e = 0; e < 8; ++e) written[e / 4][e % 4] = solved[e / 4][e % 4];
      as_operand(written, writes);
    }
    if (part == 0) {
      load_matrices(two, attention_map + token * MAP_ROW + 8 * half);
      mma_f16(o[0], writes, two[0], two[1]);
      mma_f16(o[1], writes, two[2], two[3]);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int t = 8 * n + c2 + (e & 1);
          if (t < count) store(out[((t0 + t) * (size_t)heads + head) * D + 16 * warp + g + 8 * (e >> 1)], o[n][e]);
        }
    }
    if constexpr (!VECTOR_GATE) {
#pragma unroll
      for (int e = 0; e < 8; ++e) written[e / 4][e % 4] *= to_end[8 * (e / 4) + c2 + (e & 1)];
      as_operand(written, writes);
    }
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
#pragma unroll
      for (int j = 2 * s; j < 2 * s + 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[j][e] *= VECTOR_GATE ? all[8 * j + c2 + (e & 1)] : all_channels;
      load_transposed(two, (VECTOR_GATE ? rest_tile : k_tile) + chunk_at<N>(lane & 15, 2 * s + (lane >> 4)));
      mma_f16(x[2 * s], writes, two[0], two[1]);
      mma_f16(x[2 * s + 1], writes, two[2], two[3]);
    }
  }
  float* const end_state = state();
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) end_state[(8 * j + (e & 1)) * D + 8 * (e >> 1)] = x[j][e];
}

#define RECURRENCE_CHUNKS_AS(name, D, VECTOR_GATE, DELTA, Out)                                                                      \
  KERNEL_PAIRED(2 * D, name)(const bf16* q, const bf16* k, const bf16* v, const float* gate, const float* beta, const uint32_t* ranges,       \
                  const uint32_t* from, const uint8_t* fresh, const uint8_t* live, float* running, float* body, float* transition, \
                  Out* out, int heads, int key_heads) {                                                                            \
    recurrence_chunks<D, VECTOR_GATE, DELTA>(q, k, v, gate, beta, ranges, from, fresh, live, running, body, transition, out, heads, \
                                             key_heads);                                                                           \
  }                                                                                                                                \
  REGISTER(name)
#define RECURRENCE_CHUNKS(name, D, VECTOR_GATE, DELTA) RECURRENCE_CHUNKS_AS(name, D, VECTOR_GATE, DELTA, float)
