// Everything of a seam that does not depend on the state, for all (step, head) at once: one block each, thread = column.
// With A = I + tril(b_i e^{G_i - G_j} k_i . k_j, -1), 8 x 8:
//   W = A^-1 (b e^G k)     U = A^-1 (b v)       so that in the chain   u = U - W S
//   q' = e^G q - QK W      O0 = QK U                                   o = O0 + q' S
// A step of fewer than eight rows is filled up with rows that do nothing. The record leaves as whole 16-byte lines: writing its fp16
// values one by one took twice as long.
#include "seam_record.cuh"

KERNEL(128, seam_prep)(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v, const float* __restrict__ gate,
                       const float* __restrict__ beta, const uint32_t* __restrict__ first_row, const uint64_t* __restrict__ transition_of,
                       uint8_t* __restrict__ records, float* __restrict__ writes, int heads, int key_heads) {
  SHARED __align__(16) bf16 kq[16][136], vs[8][128];  // rows 0-7 k, 8-15 q; the pad keeps ldmatrix free of bank conflicts
  SHARED float kk[8][8], qk[8][8], G[8], B[8];
  SHARED __align__(16) uint8_t record[RECORD_BYTES];
  SHARED __align__(16) float write[WRITE_FLOATS];
  const int step = blockIdx.x / heads, head = blockIdx.x % heads, key_head = head / (heads / key_heads), d = threadIdx.x, lane = d & 31;
  const uint32_t row0 = first_row[step], rows = first_row[step + 1] - row0;
  {
    const int t = d >> 4, c = (d & 15) * 8;
    const size_t row = row0 + t;
    const bool there = t < rows;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(&kq[t][c]) = there ? *reinterpret_cast<const uint4*>(k + (row * key_heads + key_head) * 128 + c) : zero;
    *reinterpret_cast<uint4*>(&kq[8 + t][c]) = there ? *reinterpret_cast<const uint4*>(q + (row * key_heads + key_head) * 128 + c) : zero;
    *reinterpret_cast<uint4*>(&vs[t][c]) = there ? *reinterpret_cast<const uint4*>(v + (row * heads + head) * 128 + c) : zero;
  }
  if (d < 8) {
    const size_t at = ((size_t)row0 + d) * heads + head;
    float a = d < rows ? gate[at] : 0.f;
#pragma unroll
    for (int s = 1; s < 8; s *= 2) {
      const float b = __shfl_up_sync(0xff, a, s);
      if (d >= s) a += b;
    }
    G[d] = a;
    B[d] = d < rows ? beta[at] : 0.f;
  }
  sync();
  if (d < 32) {  // all 16 x 8 inner products in eight mma; k and q are bf16, so the products are exact
    float p[2][4] = {};
    const uint32_t base = shared_address(&kq[0][0]) + (lane & 15) * 272 + (lane >> 4) * 16;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      uint32_t a[4];
      load_matrices(a, base + s * 32);
      mma_bf16(p[s & 1], a, a[0], a[2]);  // B = rows 0-7 of A
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = lane >> 2, j = (lane & 3) * 2 + (e & 1);
      const float x = j <= i ? (p[0][e] + p[1][e]) * expf(G[i] - G[j]) : 0.f;
      if (e < 2) kk[i][j] = x * B[i];
      else qk[i][j] = x;
    }
  }
  sync();
  float w[8], u[8];
  const int c = d >> 3;
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // forward substitution, one column per thread
    const float eg = expf(G[i]), ki = f32(kq[i][d]);
    w[i] = B[i] * eg * ki;
    u[i] = B[i] * f32(vs[i][d]);
#pragma unroll
    for (int j = 0; j < i; ++j) { w[i] -= kk[i][j] * w[j]; u[i] -= kk[i][j] * u[j]; }
    float qi = eg * f32(kq[8 + i][d]), oi = 0.f;
#pragma unroll
    for (int j = 0; j <= i; ++j) { qi -= qk[i][j] * w[j]; oi += qk[i][j] * u[j]; }
    f16* e = reinterpret_cast<f16*>(record + (c >> 3) * 1024 + i * 128 + (((c & 7) ^ i) * 16)) + (d & 7);
    const f16 a = __float2half_rn(w[i]), b = __float2half_rn(qi);
    e[0] = a;
    e[1024] = __float2half_rn(w[i] - f32(a));
    e[2048] = b;
    e[3072] = __float2half_rn(qi - f32(b));
    e[4096] = __float2half_rn(ki);
    float* x = write + (c * 32 + i * 4 + ((d & 7) >> 1)) * 4 + (d & 1);
    x[0] = u[i];
    x[2] = oi;
  }
  SeamGates* gates = reinterpret_cast<SeamGates*>(record + GATES_AT);
  if (d < 8) gates->to_end[d] = expf(G[7] - G[d]);
  if (d == 8) {
    gates->all = expf(G[7]);
    gates->live = transition_of[blockIdx.x] != NONE;
    gates->row = row0;
    gates->rows = rows;
  }
  sync();
  uint4* to = reinterpret_cast<uint4*>(records + (size_t)blockIdx.x * RECORD_BYTES);
  for (int i = d; i < RECORD_BYTES / 16; i += 128) to[i] = reinterpret_cast<uint4*>(record)[i];
  to = reinterpret_cast<uint4*>(writes + (size_t)blockIdx.x * WRITE_FLOATS);
#pragma unroll
  for (int i = 0; i < WRITE_FLOATS / 4 / 128; ++i) to[d + i * 128] = reinterpret_cast<uint4*>(write)[d + i * 128];
}
