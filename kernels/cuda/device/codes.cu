// Codes as wide values: for products of many rows.
#include "codes.cuh"

DEV void write_two(bf16* at, float x, float y) { *(uint32_t*)at = pack_bf16(x, y); }
DEV void write_two(float* at, float x, float y) {
  at[0] = x;
  at[1] = y;
}
// y [.., columns] = codes times their factors, rounded. A thread takes 16 codes of one block at a time, `count` times 16 in all.
template <class E>
DEV void widen_codes(const uint8_t* __restrict__ codes, const float* __restrict__ factors, E* __restrict__ y, uint64_t count, int columns) {
  for (uint64_t i = blockIdx.x * 128ull + threadIdx.x; i < count; i += gridDim.x * 128ull) {
    const uint64_t row = 16 * i / columns;
    const float factor = factors_of(factors, row, columns)[(16 * i - row * columns) / FACTOR_COLUMNS];
    const uint4 all = read_once((const uint4*)codes + i);
    const uint32_t fours[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t two = bf16_of_codes(fours[j >> 1], j & 1);
      write_two(y + 16 * i + 2 * j, low_bf16(two) * factor, high_bf16(two) * factor);
    }
  }
}
#define WIDEN_CODES(E, suffix)                                                                                                              \
  KERNEL(128, widen_codes_##suffix)(const uint8_t* codes, const float* factors, E* y, uint64_t count, int columns) {                        \
    widen_codes(codes, factors, y, count, columns);                                                                                         \
  }                                                                                                                                         \
  REGISTER(widen_codes_##suffix)
FOR_EACH_FLOAT(WIDEN_CODES)
