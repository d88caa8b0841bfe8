// Random values, a pure function of seed and place: hypic_kernels::random has the same in plain Rust.
#include "dev.cuh"

// The sum of the four 16-bit parts of SplitMix64(seed, place of i) less 131070; rows of `width` of a matrix with rows of `stride`.
DEV int random_whole(uint64_t i, uint64_t seed, uint32_t width, uint32_t stride) {
  uint64_t z = seed + (i / width * stride + i % width + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return (int)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48)) - 2 * 0xffff;
}
// y[i] = factor * whole number i.
#define RANDOM_KERNELS(E, suffix)                                                                                                 \
  KERNEL(128, random_##suffix)(E* __restrict__ y, uint64_t count, uint64_t seed, float factor, uint32_t width, uint32_t stride) { \
    for (uint64_t i = blockIdx.x * 128ull + threadIdx.x; i < count; i += gridDim.x * 128ull)                                      \
      store(y[i], factor * (float)random_whole(i, seed, width, stride));                                                          \
  }                                                                                                                               \
  REGISTER(random_##suffix)
FOR_EACH_FLOAT(RANDOM_KERNELS)

// y[i] = the E4M3 code of that.
KERNEL(128, random_codes)(uint8_t* __restrict__ y, uint64_t count, uint64_t seed, float factor, uint32_t width, uint32_t stride) {
  for (uint64_t i = blockIdx.x * 128ull + threadIdx.x; i < count; i += gridDim.x * 128ull)
    y[i] = to_e4m3(factor * (float)random_whole(i, seed, width, stride));
}
REGISTER(random_codes)
