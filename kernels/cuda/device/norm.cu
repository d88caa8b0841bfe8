// Norms and gates of a linear-attention layer. One block of 128 threads per row.
#include "dev.cuh"

// y = x / rms(x) * (offset + w), offset 1 for zero-centred weights. x, y [rows, width].
KERNEL(128, rms_norm)(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, int width, float offset, float eps) {
  SHARED float part[4];
  const bf16* row = x + (size_t)blockIdx.x * width;
  float squares = 0.f;
  for (int i = threadIdx.x; i < width; i += 128) squares += f32(row[i]) * f32(row[i]);
  const float scale = 1.f / sqrtf(block_sum<128>(squares, part) / width + eps);
  for (int i = threadIdx.x; i < width; i += 128) store(y[(size_t)blockIdx.x * width + i], f32(row[i]) * scale * (offset + f32(w[i])));
}
REGISTER(rms_norm)

// y = x / rms(x) * w * silu(z) over each head. x fp32 [rows, width], z, y [rows, width].
KERNEL(128, gated_norm)(const float* __restrict__ x, const bf16* __restrict__ z, const bf16* __restrict__ w, bf16* __restrict__ y, int width,
                        float eps) {
  SHARED float part[4];
  const size_t row = (size_t)blockIdx.x * width;
  float squares = 0.f;
  for (int i = threadIdx.x; i < width; i += 128) squares += x[row + i] * x[row + i];
  const float scale = 1.f / sqrtf(block_sum<128>(squares, part) / width + eps);
  for (int i = threadIdx.x; i < width; i += 128) store(y[row + i], x[row + i] * scale * f32(w[i]) * silu(f32(z[row + i])));
}
REGISTER(gated_norm)

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

// gate = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b). a, b, gate, beta [count] = [rows, heads]; a_log, dt_bias [heads].
KERNEL(128, gates)(const bf16* __restrict__ a, const bf16* __restrict__ b, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
                   float* __restrict__ gate, float* __restrict__ beta, uint32_t count, int heads) {
  const uint32_t i = blockIdx.x * 128 + threadIdx.x;
  if (i >= count) return;
  const int head = i % heads;
  const float x = f32(a[i]) + dt_bias[head];
  gate[i] = -expf(a_log[head]) * (x > 20.f ? x : log1pf(expf(x)));
  beta[i] = sigmoid(f32(b[i]));
}
REGISTER(gates)
