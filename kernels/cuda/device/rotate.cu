// Moves a state built at position 0 to its place: S <- R(p) S on the key axis (Ring: rotary positions inside linear layers).
#include "dev.cuh"

// state [states, D, D], rotated in place; table [states, 2, rotary / 2] holds the cosines, then the sines, made in f64 by the caller.
// Key rows i and i + rotary / 2 form a pair. One block per state and pair, one thread per value column.
KERNEL(128, state_rotate)(float* state, const float* __restrict__ table, int width, int rotary) {
  const int half = rotary / 2, i = blockIdx.x, c = threadIdx.x;
  if (c >= width) return;
  const float cosine = table[(size_t)blockIdx.y * rotary + i], sine = table[(size_t)blockIdx.y * rotary + half + i];
  float* a = state + ((size_t)blockIdx.y * width + i) * width + c;
  float* b = a + (size_t)half * width;
  const float x = *a, y = *b;
  *a = x * cosine - y * sine;
  *b = y * cosine + x * sine;
}
REGISTER(state_rotate)
