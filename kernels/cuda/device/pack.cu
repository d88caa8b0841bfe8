// Summaries between the fp32 row-major form of the recurrences and the stored forms.
#include "layout.cuh"

// Values to be stored: over the range of the format they become its largest finite value; what is not finite becomes NaN, so that
// whoever writes the tuple finds it.
DEV bool is_finite(float x) { return (to_bits(x) & 0x7f800000u) != 0x7f800000u; }
DEV void keep(f16& at, float x) {
  store(at, x);
  if (!is_finite(x)) *(uint16_t*)&at = 0x7fff;
}
DEV void keep(bf16& at, float x) {
  const float largest = from_bits(0x7f7f0000u);
  store(at, fminf(fmaxf(x, -largest), largest));
  if (!is_finite(x)) *(uint16_t*)&at = 0x7fff;
}
DEV void keep(float& at, float x) { at = x; }

// Tiles of layout 1. One block per (segment, head), D threads. An offset of NONE leaves that part out.
template <int D, class Stored>
DEV void pack_tiles(const float* __restrict__ transition, const float* __restrict__ state, const uint64_t* __restrict__ transition_of,
                    const uint64_t* __restrict__ state_of, uint8_t* __restrict__ arena) {
  constexpr bool PAIR = sizeof(Stored) == 4;
  const size_t from = (size_t)blockIdx.x * D * D;
  const uint64_t t = transition_of[blockIdx.x], s = state_of[blockIdx.x];
  for (int row = 0; row < D; ++row) {
    const int col = threadIdx.x;
    if (t != NONE) {
      const float x = transition[from + row * D + col];
      f16* tile = (f16*)(arena + t) + tile_at<D>(row, col);
      keep(tile[0], x);
      if (PAIR) keep(tile[D * D], x - f32(tile[0]));
    }
    if (s != NONE) keep(((Stored*)(arena + s))[state_at<D>(row, col)], state[from + row * D + col]);
  }
}
template <int D, class Stored>
DEV void unpack_tiles(const uint8_t* __restrict__ arena, const uint64_t* __restrict__ transition_of, const uint64_t* __restrict__ state_of,
                      float* __restrict__ transition, float* __restrict__ state) {
  constexpr bool PAIR = sizeof(Stored) == 4;
  const size_t to = (size_t)blockIdx.x * D * D;
  const uint64_t t = transition_of[blockIdx.x], s = state_of[blockIdx.x];
  for (int row = 0; row < D; ++row) {
    const int col = threadIdx.x;
    const f16* tile = (const f16*)(arena + t) + tile_at<D>(row, col);
    // A dead head's T is zero, a missing S too.
    transition[to + row * D + col] = t == NONE ? 0.f : PAIR ? f32(tile[0]) + f32(tile[D * D]) : f32(tile[0]);
    state[to + row * D + col] = s == NONE ? 0.f : f32(((const Stored*)(arena + s))[state_at<D>(row, col)]);
  }
}
#define TILES(D, Stored, suffix)                                                                                                    \
  KERNEL(D, pack_tiles_##suffix)(const float* transition, const float* state, const uint64_t* transition_of, const uint64_t* state_of, \
                                 uint8_t* arena) {                                                                                  \
    pack_tiles<D, Stored>(transition, state, transition_of, state_of, arena);                                                       \
  }                                                                                                                                 \
  REGISTER(pack_tiles_##suffix)                                                                                                     \
  KERNEL(D, unpack_tiles_##suffix)(const uint8_t* arena, const uint64_t* transition_of, const uint64_t* state_of, float* transition, \
                                   float* state) {                                                                                  \
    unpack_tiles<D, Stored>(arena, transition_of, state_of, transition, state);                                                     \
  }                                                                                                                                 \
  REGISTER(unpack_tiles_##suffix)
TILES(64, f16, 64_f16)
TILES(64, float, 64_f32)
TILES(128, f16, 128_f16)
TILES(128, float, 128_f32)

// Plain rows of values as they are stored, and fp32.
#define CONVERT(Stored, suffix)                                                                                                     \
  KERNEL(128, widen_##suffix)(const Stored* __restrict__ x, float* __restrict__ y, uint32_t count) {                                \
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) y[i] = f32(x[i]);                            \
  }                                                                                                                                 \
  REGISTER(widen_##suffix)                                                                                                          \
  KERNEL(128, narrow_##suffix)(const float* __restrict__ x, Stored* __restrict__ y, uint32_t count) {                               \
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) keep(y[i], x[i]);                            \
  }                                                                                                                                 \
  REGISTER(narrow_##suffix)
CONVERT(f16, f16)
CONVERT(bf16, bf16)
CONVERT(float, f32)

// An identity on a T of zeros [heads, width, width], one block per head.
KERNEL(128, identity)(float* transition, int width) {
  if ((int)threadIdx.x < width) transition[((size_t)blockIdx.x * width + threadIdx.x) * width + threadIdx.x] = 1.f;
}
REGISTER(identity)

// Eight-bit rows: one fp32 scale, then `width` codes. One warp per row.
struct Int8 { static constexpr float LARGEST = 127.f; };
struct Fp8 { static constexpr float LARGEST = 448.f; };
DEV uint8_t encode(Int8, float x) { return (uint8_t)(int8_t)rintf(x); }
DEV uint8_t encode(Fp8, float x) { return to_e4m3(x); }
DEV float decode(Int8, uint8_t x) { return (float)(int8_t)x; }
DEV float decode(Fp8, uint8_t x) { return from_e4m3(x); }
template <class Code> DEV void pack_rows(const float* __restrict__ x, uint8_t* __restrict__ rows, int width) {
  const float* from = x + (size_t)blockIdx.x * width;
  uint8_t* to = rows + (size_t)blockIdx.x * (4 + width);
  float largest = 0.f;
  for (int i = threadIdx.x; i < width; i += 32) largest = fmaxf(largest, is_finite(from[i]) ? fabsf(from[i]) : from_bits(0x7f800000u));
  for (int m = 16; m; m >>= 1) largest = fmaxf(largest, shuffle_xor(largest, m));
  const float scale = largest / Code::LARGEST;
  if (threadIdx.x == 0) *(float*)to = scale;
  for (int i = threadIdx.x; i < width; i += 32) to[4 + i] = encode(Code(), scale > 0.f ? from[i] / scale : 0.f);
}
template <class Code> DEV void unpack_rows(const uint8_t* __restrict__ rows, float* __restrict__ x, int width) {
  const uint8_t* from = rows + (size_t)blockIdx.x * (4 + width);
  for (int i = threadIdx.x; i < width; i += 32) x[(size_t)blockIdx.x * width + i] = decode(Code(), from[4 + i]) * *(const float*)from;
}
#define ROWS(Code, suffix)                                                                                                          \
  KERNEL(32, pack_rows_##suffix)(const float* x, uint8_t* rows, int width) { pack_rows<Code>(x, rows, width); }                     \
  REGISTER(pack_rows_##suffix)                                                                                                      \
  KERNEL(32, unpack_rows_##suffix)(const uint8_t* rows, float* x, int width) { unpack_rows<Code>(rows, x, width); }                 \
  REGISTER(unpack_rows_##suffix)
ROWS(Int8, i8)
ROWS(Fp8, e4m3)
