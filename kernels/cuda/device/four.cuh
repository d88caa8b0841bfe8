// Four values that follow each other: what one thread of a kernel on rows reads and writes at once. 8 bytes of bf16, 16 of fp32.
#pragma once
#include "tensor.cuh"

struct alignas(16) Four { float at[4]; };

// The address is a multiple of four values.
DEV Four read_four(const float* at) {
  const uint4 v = *(const uint4*)at;
  return {{from_bits(v.x), from_bits(v.y), from_bits(v.z), from_bits(v.w)}};
}
DEV Four read_four(const bf16* at) {
  const uint2 v = *(const uint2*)at;
  return {{low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y)}};
}
// The same before the wait for what the last launches wrote.
DEV Four read_four_fresh(const float* at) {
  const uint4 v = read_fresh((const uint4*)at);
  return {{from_bits(v.x), from_bits(v.y), from_bits(v.z), from_bits(v.w)}};
}
DEV Four read_four_fresh(const bf16* at) {
  const uint2 v = read_fresh((const uint2*)at);
  return {{low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y)}};
}
DEV void write_four(float* at, const Four& v) { *(uint4*)at = {to_bits(v.at[0]), to_bits(v.at[1]), to_bits(v.at[2]), to_bits(v.at[3])}; }
DEV void write_four(bf16* at, const Four& v) { *(uint2*)at = {pack_bf16(v.at[0], v.at[1]), pack_bf16(v.at[2], v.at[3])}; }

// The same of rows that may be no whole fours: one by one then, zeros from `count` on.
template <class E> DEV Four read_part(const E* at, bool whole, uint32_t count) {
  if (whole) return read_four(at);
  Four v = {};
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) v.at[j] = f32(at[j]);
  return v;
}
template <class E> DEV void write_part(E* at, const Four& v, bool whole, uint32_t count) {
  if (whole) {
    write_four(at, v);
    return;
  }
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) store(at[j], v.at[j]);
}

// silu to 20 bits: two instructions of the special unit.
DEV float quick_silu(float x) { return quotient(x, 1.f + two_to(-1.44269504f * x)); }
// silu of what is stored in the format of `E`.
template <class E> DEV float silu_for(float x) { return sizeof(E) == 2 ? quick_silu(x) : silu(x); }
