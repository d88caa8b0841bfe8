// The token recurrence of every family, two threads per column: the plain form of chunk prefill, and decode.
//
//   S <- diag(e^g) S ;  u = b (v - k^T S)  or  u = v without the delta rule ;  S <- S + k u^T ;  o = q^T S
//
// blockIdx.x names the columns: 0 the running state (gives the outputs), 1 the body's state (zero before token `from`), 2 the
// body's T (identity before `from`, no writes). blockIdx.y is (sequence, head). States are fp32 row-major [key, value].
// One thread of a pair has the even key rows, the other the odd ones: with all 128 in one thread the registers spill.
#pragma once
#include "dev.cuh"

constexpr int STAGED = 16;  // tokens whose k, q and decays lie in shared memory at once

template <int D, bool VECTOR_GATE, bool DELTA, class In, class Out>
DEV void recurrence(const In* __restrict__ q, const In* __restrict__ k, const In* __restrict__ v, const float* __restrict__ gate,
                    const float* __restrict__ beta, const uint32_t* __restrict__ ranges, const uint32_t* __restrict__ from,
                    const uint8_t* __restrict__ fresh, const uint8_t* __restrict__ live, float* running, float* body, float* transition,
                    Out* __restrict__ out, int heads, int key_heads) {
  // Decays as e^g - 1: e^g of a slow head rounds the same way at every token, which after a thousand of them is 3e-5.
  SHARED float keys[STAGED][D], queries[STAGED][D], decays[STAGED][VECTOR_GATE ? D : 1], betas[STAGED];
  const int part = blockIdx.x, sequence = blockIdx.y / heads, head = blockIdx.y % heads, key_head = head / (heads / key_heads);
  const int c = threadIdx.x >> 1, odd = threadIdx.x & 1;
  if (part == 2 && !live[blockIdx.y]) return;
  float* state = (part == 0 ? running : part == 1 ? body : transition) + (size_t)blockIdx.y * D * D + c;
  const uint32_t first = ranges[2 * sequence] + (part ? from[sequence] : 0), end = ranges[2 * sequence + 1];

  float x[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) {
    const int row = 2 * i + odd;
    x[i] = fresh[sequence] ? (part == 2 && row == c ? 1.f : 0.f) : state[(size_t)row * D];
  }
  for (uint32_t t0 = first; t0 < end; t0 += STAGED) {
    const int count = end - t0 < STAGED ? (int)(end - t0) : STAGED;
    sync();
    for (int t = odd; t < count; t += 2) {
      const size_t row = t0 + t, at = (row * key_heads + key_head) * D + c;
      keys[t][c] = f32(k[at]);
      queries[t][c] = f32(q[at]);
      if (VECTOR_GATE) decays[t][c] = expm1f(gate[(row * heads + head) * D + c]);
      else if (c == 0) decays[t][0] = expm1f(gate[row * heads + head]);
      if (DELTA && c == 0) betas[t] = beta[row * heads + head];
    }
    sync();
    for (int t = 0; t < count; ++t) {
      const size_t at = ((t0 + t) * (size_t)heads + head) * D + c;
      float u = part == 2 ? 0.f : f32(v[at]);
      float read = 0.f, o = 0.f;
#pragma unroll
      for (int i = 0; i < D / 2; ++i) {
        x[i] += x[i] * decays[t][VECTOR_GATE ? 2 * i + odd : 0];
        if (DELTA) read += keys[t][2 * i + odd] * x[i];
      }
      if (DELTA) u = betas[t] * (u - (read + shuffle_xor(read, 1)));
#pragma unroll
      for (int i = 0; i < D / 2; ++i) {
        x[i] += keys[t][2 * i + odd] * u;
        o += queries[t][2 * i + odd] * x[i];
      }
      o += shuffle_xor(o, 1);
      if (part == 0 && !odd) store(out[at], o);
    }
  }
#pragma unroll
  for (int i = 0; i < D / 2; ++i) state[(size_t)(2 * i + odd) * D] = x[i];
}

// In: format of queries, keys and values. Out: of outputs.
#define RECURRENCE_AS(name, D, VECTOR_GATE, DELTA, In, Out)                                                                         \
  KERNEL(2 * D, name)(const In* q, const In* k, const In* v, const float* gate, const float* beta, const uint32_t* ranges,          \
                  const uint32_t* from, const uint8_t* fresh, const uint8_t* live, float* running, float* body, float* transition, \
                  Out* out, int heads, int key_heads) {                                                                            \
    recurrence<D, VECTOR_GATE, DELTA>(q, k, v, gate, beta, ranges, from, fresh, live, running, body, transition, out, heads,        \
                                      key_heads);                                                                                  \
  }                                                                                                                                \
  REGISTER(name)
#define RECURRENCE(name, D, VECTOR_GATE, DELTA) RECURRENCE_AS(name, D, VECTOR_GATE, DELTA, bf16, float)
