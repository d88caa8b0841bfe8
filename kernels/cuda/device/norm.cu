// Norms and gates. Weights are fp32, rows bf16 or fp32.
#include "norm.cuh"

// y = x / rms(x) * (offset + w), offset 1 for zero-centred weights. x, y [rows, width]; THREADS for each row.
template <int THREADS, class E>
DEV void rms_norm(const E* __restrict__ x, const float* __restrict__ w, E* __restrict__ y, int rows, int width, float offset, float eps) {
  let_others_start();
  await_inputs();
  const int row = blockIdx.x * (128 / THREADS) + threadIdx.x / THREADS, first = threadIdx.x % THREADS;
  if (row >= rows) return;
  const size_t at = (size_t)row * width;
  const bool whole = width % 4 == 0;
  const float scale = inverse_rms<THREADS>(x + at, first, width, eps);
  OWN_FOURS(i) {
    const Four v = read_part(x + at + i, whole, width - i), weight = read_part(w + i, whole, width - i);
    write_part(y + at + i, normed(v, weight, scale, offset), whole, width - i);
  }
}

// x += r, then y = x / rms(x) * (offset + w) of the sums as they are stored. x, r, y [rows, width]; one block per row.
template <class E>
DEV void add_norm(E* x, const E* __restrict__ r, const float* __restrict__ w, E* __restrict__ y, int width, float offset, float eps) {
  constexpr uint32_t EACH = 4;  // fours on their way at once
  let_others_start();
  await_inputs();
  const size_t at = (size_t)blockIdx.x * width;
  const bool whole = width % 4 == 0;
  const uint32_t end = width;
  float squares = 0.f;
  for (uint32_t first = 4 * threadIdx.x; first < end; first += EACH * 512) {
    Four old[EACH], more[EACH];
#pragma unroll
    for (uint32_t n = 0; n < EACH; ++n)
      if (const uint32_t i = first + n * 512; i < end) {
        old[n] = read_part(x + at + i, whole, end - i);
        more[n] = read_part(r + at + i, whole, end - i);
      }
#pragma unroll
    for (uint32_t n = 0; n < EACH; ++n)
      if (const uint32_t i = first + n * 512; i < end) {
        add_four<E>(old[n], more[n], squares);
        write_part(x + at + i, old[n], whole, end - i);
      }
  }
  const float scale = 1.f / sqrtf(row_sum<128>(squares) / width + eps);
  for (uint32_t first = 4 * threadIdx.x; first < end; first += EACH * 512) {
    Four sum[EACH], weight[EACH];
#pragma unroll
    for (uint32_t n = 0; n < EACH; ++n)
      if (const uint32_t i = first + n * 512; i < end) {
        sum[n] = read_part(x + at + i, whole, end - i);
        weight[n] = read_part(w + i, whole, end - i);
      }
#pragma unroll
    for (uint32_t n = 0; n < EACH; ++n)
      if (const uint32_t i = first + n * 512; i < end) write_part(y + at + i, normed(sum[n], weight[n], scale, offset), whole, end - i);
  }
}

// y = x / rms(x) * w * silu(z) over each head. x, z, y [rows, width].
template <int THREADS, class E>
DEV void gated_norm(const E* __restrict__ x, const E* __restrict__ z, const float* __restrict__ w, E* __restrict__ y, int rows, int width, float eps) {
  let_others_start();
  await_inputs();
  const int row = blockIdx.x * (128 / THREADS) + threadIdx.x / THREADS, first = threadIdx.x % THREADS;
  if (row >= rows) return;
  const size_t at = (size_t)row * width;
  const bool whole = width % 4 == 0;
  const float scale = inverse_rms<THREADS>(x + at, first, width, eps);
  OWN_FOURS(i) {
    const Four v = read_part(x + at + i, whole, width - i);
    const Four gate = read_part(z + at + i, whole, width - i), weight = read_part(w + i, whole, width - i);
    write_part(y + at + i, gated(v, weight, gate, scale), whole, width - i);
  }
}

// gate = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b). a, b, gate, beta [count] = [rows, heads]; a_log, dt_bias [heads].
template <class E>
DEV void gates(const E* __restrict__ a, const E* __restrict__ b, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
               float* __restrict__ gate, float* __restrict__ beta, uint32_t count, int heads) {
  const uint32_t i = blockIdx.x * 128 + threadIdx.x;
  if (i >= count) return;
  const int head = i % heads;
  const float x = f32(a[i]) + dt_bias[head];
  gate[i] = -expf(a_log[head]) * (x > 20.f ? x : log1pf(expf(x)));
  beta[i] = sigmoid(f32(b[i]));
}

#define ROW_NORMS(E, name, THREADS)                                                                                                  \
  KERNEL(128, rms_norm_##name)(const E* x, const float* w, E* y, int rows, int width, float offset, float eps) {                     \
    rms_norm<THREADS>(x, w, y, rows, width, offset, eps);                                                                            \
  }                                                                                                                                  \
  REGISTER(rms_norm_##name)                                                                                                          \
  KERNEL(128, gated_norm_##name)(const E* x, const E* z, const float* w, E* y, int rows, int width, float eps) {                     \
    gated_norm<THREADS>(x, z, w, y, rows, width, eps);                                                                               \
  }                                                                                                                                  \
  REGISTER(gated_norm_##name)
#define NORMS(E, suffix)                                                                                                             \
  ROW_NORMS(E, suffix, 128)                                                                                                          \
  KERNEL(128, add_norm_##suffix)(E* x, const E* r, const float* w, E* y, int width, float offset, float eps) {                       \
    add_norm(x, r, w, y, width, offset, eps);                                                                                        \
  }                                                                                                                                  \
  REGISTER(add_norm_##suffix)                                                                                                        \
  ROW_NORMS(E, narrow_##suffix, 32)                                                                                                  \
  KERNEL(128, gates_##suffix)(const E* a, const E* b, const float* a_log, const float* dt_bias, float* gate, float* beta,            \
                              uint32_t count, int heads) {                                                                           \
    gates(a, b, a_log, dt_bias, gate, beta, count, heads);                                                                           \
  }                                                                                                                                  \
  REGISTER(gates_##suffix)
FOR_EACH_FLOAT(NORMS)

// y = x / |x| * scale over each head: queries and keys of the delta rule. x, y [rows, width].
KERNEL(128, unit_norm)(const bf16* __restrict__ x, bf16* __restrict__ y, int width, float scale, float eps) {
  SHARED float part[4];
  const size_t row = (size_t)blockIdx.x * width;
  float squares = 0.f;
  for (int i = threadIdx.x; i < width; i += 128) squares += f32(x[row + i]) * f32(x[row + i]);
  const float factor = scale / sqrtf(block_sum<128>(squares, part) + eps);
  for (int i = threadIdx.x; i < width; i += 128) store(y[row + i], f32(x[row + i]) * factor);
}
REGISTER(unit_norm)

// bound [bodies, heads] += the sum of gate [rows, heads] over each body's rows [first, end): the logarithm of the gate-only bound on T.
// One block per (head, body).
KERNEL(128, add_gates)(const float* __restrict__ gate, float* bound, const uint32_t* __restrict__ first, const uint32_t* __restrict__ end,
                       int heads) {
  SHARED float part[4];
  float sum = 0.f;
  for (uint32_t row = first[blockIdx.y] + threadIdx.x; row < end[blockIdx.y]; row += 128) sum += gate[(size_t)row * heads + blockIdx.x];
  sum = block_sum<128>(sum, part);
  if (threadIdx.x == 0) bound[blockIdx.y * heads + blockIdx.x] += sum;
}
REGISTER(add_gates)
