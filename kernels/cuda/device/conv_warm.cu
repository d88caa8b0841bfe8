// Short causal convolution and SiLU over packed rows, queries and keys of unit length behind it, and the tails it leaves.
//
// A span is rows of one sequence that follow each other; what stands to the left of its first row lies elsewhere: in the sequence's
// tail, in the tail of a cached body, in other rows of the step, or nowhere (zeros). A table names these rows by address.
#include "conv.cuh"

constexpr int ROWS_PER_BLOCK = 16, AT_ONCE = 4;

// x [rows, channels]: raw queries, keys, values. taps [channels, TAPS], oldest first. span_of [rows];
// first_of [spans]; left [spans, TAPS - 1]: addresses of rows of `channels` values, oldest first, 0 for zeros.
// q, k [rows, key heads, width], v [rows, heads, width]; width a multiple of 4, at most 128. One warp for some rows of a head, four
// channels in a thread, which keeps the rows to the left.
template <class E>
DEV void conv_warm(const E* __restrict__ x, const float* __restrict__ taps, const uint32_t* __restrict__ span_of,
                   const uint32_t* __restrict__ first_of, const uint64_t* __restrict__ left, E* __restrict__ q, E* __restrict__ k,
                   E* __restrict__ v, int rows, int key_heads, int heads, int width) {
  const int head = blockIdx.y * 4 + threadIdx.x / 32, channels = (2 * key_heads + heads) * width, i = threadIdx.x % 32 * 4;
  if (head >= 2 * key_heads + heads) return;
  const bool works = i < width;
  const int channel = head * width + i;
  const int row0 = blockIdx.x * ROWS_PER_BLOCK, end = row0 + ROWS_PER_BLOCK < rows ? row0 + ROWS_PER_BLOCK : rows;
  const bool is_q = head < key_heads, is_k = !is_q && head < 2 * key_heads;
  E* to = is_q ? q + channel : is_k ? k + channel - key_heads * width : v + channel - 2 * key_heads * width;
  const size_t stride = (size_t)(is_q || is_k ? key_heads : heads) * width;
  const float scale = is_q ? 1.f / sqrtf((float)width) : 1.f;
  Four weights[4] = {}, window[TAPS - 1 + AT_ONCE] = {};  // of each channel; of each row, oldest first
  if (works) {
#pragma unroll
    for (int j = 0; j < 4; ++j) weights[j] = read_four(taps + (size_t)(channel + j) * TAPS);
  }
  for (int first = row0; first < end; first += AT_ONCE) {
    int spans[AT_ONCE], places[AT_ONCE];
#pragma unroll
    for (int r = 0; r < AT_ONCE; ++r) {
      const int row = first + r < end ? first + r : end - 1;
      if (works) window[TAPS - 1 + r] = read_four(x + (size_t)row * channels + channel);
      spans[r] = (int)span_of[row];
      places[r] = row - (int)first_of[spans[r]];
    }
#pragma unroll
    for (int r = 0; r < AT_ONCE; ++r) {
      const int row = first + r;
      if (row >= end) break;
      if (works && (row == row0 || places[r] == 0)) {
#pragma unroll
        for (int tap = 0; tap < TAPS - 1; ++tap) {
          const int before = TAPS - 1 - tap;
          const E* from = x + (size_t)(row - before) * channels;
          if (places[r] < before) from = (const E*)left[(size_t)spans[r] * (TAPS - 1) + places[r] + tap];
          window[r + tap] = from == nullptr ? Four{} : read_four(from + channel);
        }
      }
      const Four y = convolved<E>(weights, window[r], window[r + 1], window[r + 2], window[r + 3], is_q || is_k, scale);
      if (works) write_four(to + (size_t)row * stride, y);
    }
#pragma unroll
    for (int tap = 0; tap < TAPS - 1; ++tap) window[tap] = window[tap + AT_ONCE];
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
