// xxh3-64 of stored parts, the sum that the codec keeps: nothing has to leave the device to be verified.
//
// Long inputs (over 240 bytes) are blocks of 16 stripes of 64 bytes; what a block adds to the eight accumulators does not depend on
// them, so warps sum blocks side by side, and only the scramble between blocks is a chain.
// Formula and constants: xxHash 0.8, XXH3_64bits, long path, default secret, seed 0.
#include "dev.cuh"

constexpr uint64_t PRIME32_1 = 0x9E3779B1u, PRIME32_2 = 0x85EBCA77u, PRIME32_3 = 0xC2B2AE3Du;
constexpr uint64_t PRIME64_1 = 0x9E3779B185EBCA87ull, PRIME64_2 = 0xC2B2AE3D27D4EB4Full, PRIME64_3 = 0x165667B19E3779F9ull,
                   PRIME64_4 = 0x85EBCA77C2B2AE63ull, PRIME64_5 = 0x27D4EB2F165667C5ull;
constexpr uint64_t AVALANCHE = 0x165667919E3779F9ull;
constexpr int STRIPE = 64, STRIPES_PER_BLOCK = 16, BLOCK = 1024, THREADS = 256, BATCH = THREADS / 8;

DEV uint64_t read64(const uint8_t* p) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; --i) v = v << 8 | p[i];
  return v;
}
// What one stripe adds to accumulator `lane`: the other lane's data, and a product of halves of its own keyed data.
DEV uint64_t stripe_adds(const uint64_t* stripe, const uint8_t* secret, int lane) {
  const uint64_t keyed = stripe[lane] ^ read64(secret + lane * 8);
  return stripe[lane ^ 1] + (keyed & 0xffffffffu) * (keyed >> 32);
}
DEV uint64_t fold(uint64_t a, uint64_t b) { return a * b ^ multiply_high(a, b); }

// parts [offset, length] pairs into `bytes`; offsets and lengths are multiples of 8, lengths over 240. secret: the 192 bytes of the
// default secret. One block per part.
KERNEL(THREADS, checksum)(const uint8_t* __restrict__ bytes, const uint64_t* __restrict__ parts, const uint8_t* __restrict__ secret,
                          uint64_t* __restrict__ sums) {
  SHARED uint64_t added[BATCH][8], total[8];
  SHARED uint8_t key[192];
  const uint64_t length = parts[2 * blockIdx.x + 1];
  const uint64_t* data = (const uint64_t*)(bytes + parts[2 * blockIdx.x]);
  const int lane = threadIdx.x & 7, slot = threadIdx.x >> 3;
  if (threadIdx.x < 192) key[threadIdx.x] = secret[threadIdx.x];
  const uint64_t seeds[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  uint64_t sum = seeds[lane];
  const uint64_t blocks = (length - 1) / BLOCK;
  sync();
  for (uint64_t b0 = 0; b0 < blocks; b0 += BATCH) {
    const int count = blocks - b0 < BATCH ? (int)(blocks - b0) : BATCH;
    uint64_t a = 0;
    if (slot < count)
      for (int s = 0; s < STRIPES_PER_BLOCK; ++s) a += stripe_adds(data + (b0 + slot) * (BLOCK / 8) + s * 8, key + s * 8, lane);
    added[slot][lane] = a;
    sync();
    if (threadIdx.x < 8)
      for (int b = 0; b < count; ++b) {
        sum += added[b][lane];
        sum = (sum ^ sum >> 47 ^ read64(key + 128 + lane * 8)) * PRIME32_1;
      }
    sync();
  }
  if (threadIdx.x < 8) {
    const uint64_t* last = data + blocks * (BLOCK / 8);
    const uint64_t stripes = (length - 1 - blocks * BLOCK) / STRIPE;
    for (uint64_t s = 0; s < stripes; ++s) sum += stripe_adds(last + s * 8, key + s * 8, lane);
    sum += stripe_adds(data + length / 8 - 8, key + 192 - STRIPE - 7, lane);
    total[lane] = sum;
  }
  sync();
  if (threadIdx.x == 0) {
    uint64_t h = length * PRIME64_1;
    for (int i = 0; i < 4; ++i)
      h += fold(total[2 * i] ^ read64(key + 11 + 16 * i), total[2 * i + 1] ^ read64(key + 19 + 16 * i));
    h = (h ^ h >> 37) * AVALANCHE;
    sums[blockIdx.x] = h ^ h >> 32;
  }
}
REGISTER(checksum)
