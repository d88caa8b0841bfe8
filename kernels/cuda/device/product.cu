// Products of weights, the plain form: what runs as fibers, and what the library's products are checked against.
#include "dev.cuh"

// y [rows, out] = x [rows, in] weight [out, in]^T, sums in fp32. One warp per row and 64 outputs, one thread per every 32nd output.
template <class E, class Out>
DEV void product(const E* __restrict__ x, const E* __restrict__ weight, Out* __restrict__ y, int in, int out) {
  const E* const row = x + (size_t)blockIdx.x * in;
  for (int o = blockIdx.y * 64 + threadIdx.x; o < out && o < (int)blockIdx.y * 64 + 64; o += 32) {
    const E* const column = weight + (size_t)o * in;
    // Eight sums: neither a chain of additions nor one large sum that swallows small terms.
    float sums[8] = {};
    int i = 0;
    for (; i + 8 <= in; i += 8)
      for (int j = 0; j < 8; ++j) sums[j] += f32(row[i + j]) * f32(column[i + j]);
    for (int j = 0; i + j < in; ++j) sums[j] += f32(row[i + j]) * f32(column[i + j]);
    store(y[(size_t)blockIdx.x * out + o], ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])));
  }
}
#define PRODUCT(E, Out, suffix)                                                                                                      \
  KERNEL(32, product_##suffix)(const E* x, const E* weight, Out* y, int in, int out) { product(x, weight, y, in, out); }             \
  REGISTER(product_##suffix)
PRODUCT(bf16, bf16, bf16)
PRODUCT(bf16, float, bf16_f32)
PRODUCT(float, float, f32)
