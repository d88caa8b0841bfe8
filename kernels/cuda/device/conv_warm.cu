// Short causal convolution + SiLU over packed rows; each sequence continues from a stored tail of raw inputs.
#include "dev.cuh"

constexpr int TAPS = 4, ROWS_PER_BLOCK = 64;

// One thread per channel, 64 rows of one sequence per block. x, y [rows, channels]; weight [channels, TAPS], oldest tap first;
// tails [.., TAPS - 1, channels], oldest row first. tail_of names the tail of a sequence, or -1 for none (zeros).
// next_tail [sequences, TAPS - 1, channels] takes the last raw inputs.
KERNEL(128, conv_warm)(const bf16* __restrict__ x, const float* __restrict__ weight, const uint32_t* __restrict__ starts,
                       const int32_t* __restrict__ tail_of, const bf16* __restrict__ tails, bf16* __restrict__ y,
                       bf16* __restrict__ next_tail, int channels) {
  const int channel = blockIdx.x * 128 + threadIdx.x, sequence = blockIdx.y;
  const int first = (int)starts[sequence], length = (int)starts[sequence + 1] - first, t0 = blockIdx.z * ROWS_PER_BLOCK;
  // The block of the first rows also writes the tail, so that an empty sequence hands its tail on.
  if (channel >= channels || (t0 >= length && t0 > 0)) return;
  const int tail = tail_of[sequence];
  auto input = [&](int t) -> float {
    if (t >= 0) return f32(x[(size_t)(first + t) * channels + channel]);
    return tail < 0 ? 0.f : f32(tails[((size_t)tail * (TAPS - 1) + (TAPS - 1 + t)) * channels + channel]);
  };
  float w[TAPS], window[TAPS];
#pragma unroll
  for (int i = 0; i < TAPS; ++i) w[i] = weight[(size_t)channel * TAPS + i];
#pragma unroll
  for (int i = 1; i < TAPS; ++i) window[i] = input(t0 - TAPS + i);
  const int end = t0 + ROWS_PER_BLOCK < length ? t0 + ROWS_PER_BLOCK : length;
  for (int t = t0; t < end; ++t) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i + 1 < TAPS; ++i) window[i] = window[i + 1];
    window[TAPS - 1] = input(t);
#pragma unroll
    for (int i = 0; i < TAPS; ++i) sum += w[i] * window[i];
    store(y[(size_t)(first + t) * channels + channel], silu(sum));
  }
  if (t0 == 0)
    for (int i = 0; i < TAPS - 1; ++i)
      store(next_tail[((size_t)sequence * (TAPS - 1) + i) * channels + channel], input(length - (TAPS - 1) + i));
}
REGISTER(conv_warm)
