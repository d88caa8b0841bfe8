// Weights as E4M3 codes: 8-bit floats with a factor in fp32 for each block of 16 rows and 64 columns, [rows / 16, columns / 64].
#pragma once
#include "tensor.cuh"

constexpr int FACTOR_ROWS = 16, FACTOR_COLUMNS = 64;

#ifdef __CUDACC__
DEV uint32_t times_bf16(uint32_t two, uint32_t other) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(two), "r"(other), "r"(0x80008000u));
  return y;
}
// Bytes 0 and 1 of four, or 2 and 3, as the upper bytes of two halves.
DEV uint32_t spread(uint32_t four, bool last) { return __byte_perm(four, 0, last ? 0x3424 : 0x1404); }
// As the one of 16 bytes.
DEV float read_ahead(const float* from) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(from));
  return v;
}
#else
DEV uint32_t times_bf16(uint32_t two, uint32_t other) {
  return pack_bf16(low_bf16(two) * low_bf16(other), high_bf16(two) * high_bf16(other));
}
DEV uint32_t spread(uint32_t four, bool last) {
  const uint32_t two = last ? four >> 16 : four;
  return (two & 0xff) << 8 | (two & 0xff00) << 16;
}
DEV float read_ahead(const float* from) { return *from; }
#endif

// The first two of four codes as bf16, or the last two: exact, and of finite ones alone. A code's bits where bf16 has such bits are its value
// times 2^-120, subnormals too.
DEV uint32_t bf16_of_codes(uint32_t four, bool last) {
  const uint32_t bits = spread(four, last);
  return times_bf16((bits & 0x80008000u) | (bits >> 4 & 0x07f007f0u), 0x7b807b80u);
}

// The factors of a row of a weight [.., columns], one for each 64 columns.
DEV const float* factors_of(const float* factors, size_t row, int columns) { return factors + row / FACTOR_ROWS * (columns / FACTOR_COLUMNS); }
