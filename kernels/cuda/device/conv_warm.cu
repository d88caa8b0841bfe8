// Short causal convolution and SiLU over packed rows, queries and keys of unit length behind it, and the tails it leaves.
//
// A span is rows of one sequence that follow each other; what stands to the left of its first row lies elsewhere: in the sequence's
// tail, in the tail of a cached body, in other rows of the step, or nowhere (zeros). A table names these rows by address.
#include "dev.cuh"

constexpr int TAPS = 4, ROWS_PER_BLOCK = 16;

// x [rows, channels]: raw queries, keys, values. taps [channels, TAPS], oldest first. span_of [rows];
// first_of [spans]; left [spans, TAPS - 1]: addresses of rows of `channels` values, oldest first, 0 for zeros.
// q, k [rows, key heads, width], v [rows, heads, width]. One block for some rows of a head, one thread for each channel.
template <class E>
DEV void conv_warm(const E* __restrict__ x, const float* __restrict__ taps, const uint32_t* __restrict__ span_of,
                   const uint32_t* __restrict__ first_of, const uint64_t* __restrict__ left, E* __restrict__ q, E* __restrict__ k,
                   E* __restrict__ v, int rows, int key_heads, int heads, int width) {
  SHARED float part[4];
  const int head = blockIdx.y, channels = (2 * key_heads + heads) * width, i = threadIdx.x, channel = head * width + i;
  const int row0 = blockIdx.x * ROWS_PER_BLOCK, end = row0 + ROWS_PER_BLOCK < rows ? row0 + ROWS_PER_BLOCK : rows;
  float weights[TAPS] = {};
  if (i < width)
    for (int tap = 0; tap < TAPS; ++tap) weights[tap] = taps[(size_t)channel * TAPS + tap];
  for (int row = row0; row < end; ++row) {
    const int span = (int)span_of[row], place = row - (int)first_of[span];
    float y = 0.f;
    if (i < width) {
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        const int before = TAPS - 1 - tap;
        const E* from = x + (size_t)(row - before) * channels;
        if (place < before) from = (const E*)left[(size_t)span * (TAPS - 1) + place + tap];
        y += from == nullptr ? 0.f : weights[tap] * f32(from[channel]);
      }
      y = silu(y);
    }
    if (head < 2 * key_heads) {
      const float scale = head < key_heads ? 1.f / sqrtf((float)width) : 1.f;
      y *= scale / sqrtf(block_sum<128>(y * y, part) + 1e-6f);
    }
    if (i >= width) continue;
    if (head < key_heads) store(q[((size_t)row * key_heads + head) * width + i], y);
    else if (head < 2 * key_heads) store(k[((size_t)row * key_heads + head - key_heads) * width + i], y);
    else store(v[((size_t)row * heads + head - 2 * key_heads) * width + i], y);
  }
}

// The last raw inputs of each sequence into its tail: tails + places[sequence] takes the TAPS - 1 rows at `sources`, oldest first, 0
// for zeros. A row may come from the same tail. One thread per channel.
template <class E>
DEV void write_tails(const uint64_t* __restrict__ sources, const uint64_t* __restrict__ places, E* tails, int channels) {
  const int channel = blockIdx.x * 128 + threadIdx.x;
  if (channel >= channels) return;
  float values[TAPS - 1];
#pragma unroll
  for (int i = 0; i < TAPS - 1; ++i) {
    const E* from = (const E*)sources[(size_t)blockIdx.y * (TAPS - 1) + i];
    values[i] = from == nullptr ? 0.f : f32(from[channel]);
  }
#pragma unroll
  for (int i = 0; i < TAPS - 1; ++i) store(tails[places[blockIdx.y] + (size_t)i * channels + channel], values[i]);
}

#define CONV_WARM(E, suffix)                                                                                                         \
  KERNEL(128, conv_warm_##suffix)(const E* x, const float* taps, const uint32_t* span_of, const uint32_t* first_of,                  \
                                  const uint64_t* left, E* q, E* k, E* v, int rows, int key_heads, int heads, int width) {           \
    conv_warm(x, taps, span_of, first_of, left, q, k, v, rows, key_heads, heads, width);                                             \
  }                                                                                                                                  \
  REGISTER(conv_warm_##suffix)                                                                                                       \
  KERNEL(128, write_tails_##suffix)(const uint64_t* sources, const uint64_t* places, E* tails, int channels) {                       \
    write_tails(sources, places, tails, channels);                                                                                   \
  }                                                                                                                                  \
  REGISTER(write_tails_##suffix)
FOR_EACH_FLOAT(CONV_WARM)
